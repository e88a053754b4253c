"""pyiceberg's file access for the buckets of S3 Tables, which refuse to be listed, in moto as in fact."""

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class _NewFile(PyArrowFile):
    def exists(self):
        """No: names of new files are unique, and Arrow would list the bucket to find out."""
        return False


class TableBucketFileIO(PyArrowFileIO):
    """PyArrow, without asking whether a file to be written exists."""

    def new_output(self, location):
        """A file to be written."""
        made = super().new_output(location)
        return _NewFile(
            location=made.location,
            path=made._path,
            fs=made._filesystem,
            buffer_size=made._buffer_size,
        )
