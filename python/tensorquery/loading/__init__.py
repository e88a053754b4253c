"""From a query to batches: `create_dataloader`, the dataset, its iterators, tensors and devices."""
