"""Pictures for notebooks: HTML, plots and trees of plain data, under a limit of time."""
