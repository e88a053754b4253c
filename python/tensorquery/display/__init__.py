"""What notebooks show: HTML, pictures and trees of plain data, under a limit of time."""
