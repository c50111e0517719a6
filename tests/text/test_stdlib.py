"""Text that every machine has: every file of the library, by its definitions."""

import sysconfig
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.text.stdlib import write_stdlib


def test_the_documents_of_the_library_are_its_files_by_definition(tmp_path):
    folder = write_stdlib(tmp_path)
    written = pa.concat_tables(map(pq.read_table, sorted(folder.glob("*.parquet"))))
    of_file = defaultdict(list)
    for place, text in zip(*written.to_pydict().values(), strict=True):
        name, line = place.rsplit(":", 1)
        of_file[name].append((int(line), text))
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("ast.py", "json/decoder.py", "this.py"):
        documents = sorted(of_file[name])
        text = (library / name).read_text()
        assert "".join(document for _, document in documents) == text
        lines = text.splitlines(keepends=True)
        for line, document in documents:
            assert "".join(lines[line - 1 :]).startswith(document)
            defined = [x for x in document.splitlines() if x.startswith(("def ", "class "))]
            assert len(defined) <= 1
    assert len(of_file) > 1_000
