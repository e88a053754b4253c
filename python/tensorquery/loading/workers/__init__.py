"""Worker processes of a loader: messages of batches, shared memory, and who is still alive."""
