"""Other libraries: the Trainer of Hugging Face, nodes of torchdata, and the magic and completion of IPython."""
