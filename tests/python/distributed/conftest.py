import pytest

from process_groups import KINDS, joined


@pytest.fixture(params=KINDS)
def groups(request, tmp_path):
    """Three ranks that met, over files and over TCP."""
    found = joined(request.param, tmp_path, 3)
    yield found
    for group in reversed(found):
        group.close()
