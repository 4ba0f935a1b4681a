"""What is asked at a real terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance_namespace import DescribeTableRequest, connect

from tests.servers.lancehouse import PROGRAM


@pytest.mark.parametrize(("answer", "status"), [("n\n", 1), ("\n", 1), ("y\n", 0)], ids=["no", "nothing", "yes"])
@pytest.mark.parametrize("output", ["text", "json"])
def test_the_answer_counts(answer: str, status: int, output: str, tmp_path: Path) -> None:
    tables = connect("dir", {"root": str(tmp_path)})
    lance.write_dataset(pa.table({"id": [1]}), namespace_client=tables, table_id=["docs"])
    table = Path(str(tables.describe_table(DescribeTableRequest(id=["docs"])).location))
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    try:
        command = [
            str(PROGRAM),
            "--output",
            output,
            "table",
            "drop",
            "--impl",
            "dir",
            "--property",
            f"root={tmp_path}",
            "docs",
        ]
        done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, table.exists()) == (status, status == 1), done.stderr
    assert done.stderr.startswith(f"Drop the table docs and all its data at {table}? This is final. [y/N]: ")
    assert ("nothing was done" in done.stderr) == (status == 1)
    assert bool(done.stdout) == (status == 0)
