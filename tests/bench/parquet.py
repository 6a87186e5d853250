"""`python -m tests.bench.parquet`: how many bytes the bucket gives for each byte that readers of Parquet take.

pyarrow, duckdb and polars read through a proxy with an empty cache, and again, each time in a new process. They are
installed as `make frameworks` does it. Bytes and requests are counted, and no time: the machine may be busy.

    footers   the number of rows of 16 files of 20 MiB
    lookups   one value each of 60 rows at random, by their numbers, in a file of 253 MiB
    column    the sum of a column of 8 bytes a row, in that file, of 4 KiB a row
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from itertools import product
from random import Random
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet

from outrider.cli.run.child_environment import for_child
from tests.frameworks.environments import commands_of
from tests.support.bucket import REGION, Bucket
from tests.support.proxy import Proxy
from tests.support.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NAME = "parquet"
GROUP_ROWS, ROW_BYTES = 1024, 4096
FILES, FILE_GROUPS, LARGE_GROUPS = 16, 5, 63
PASSES, DEADLINE_S = 3, 600.0
# Each defines what it reads by. `files` is the glob of the small files, `large` the large one, both `BUCKET/KEY`.
_READERS = {
    "pyarrow": """
import os
from pyarrow import compute, parquet
from pyarrow.fs import FileSelector, S3FileSystem
files_of = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"])
def footers(files):
    paths = [each.path for each in files_of.get_file_info(FileSelector(os.path.dirname(files)))]
    return sum(parquet.read_metadata(path, filesystem=files_of).num_rows for path in paths)
def lookup(large, row):
    found = parquet.read_table(large, filesystem=files_of, columns=["value"], filters=[("row", "=", row)])
    return found["value"][0].as_py()
def column(large):
    return compute.sum(parquet.read_table(large, filesystem=files_of, columns=["value"])["value"]).as_py()
""",
    "duckdb": """
import duckdb, pathlib
from duckdb_extension_httpfs import __path__ as place
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute(f"LOAD '{next(pathlib.Path(place[0]).rglob('*.duckdb_extension'))}'")
connection.execute("SET s3_url_style = 'path'")
one = lambda query: connection.sql(query).fetchone()[0]
def footers(files):
    return one(f"SELECT count(*) FROM 's3://{files}'")
def lookup(large, row):
    return one(f"SELECT value FROM 's3://{large}' WHERE row = {row}")
def column(large):
    return one(f"SELECT sum(value) FROM 's3://{large}'")
""",
    "polars": """
import polars
table = lambda name: polars.scan_parquet("s3://" + name)
def footers(files):
    return table(files).select(polars.len()).collect().item()
def lookup(large, row):
    return table(large).filter(polars.col("row") == row).select("value").collect().item()
def column(large):
    return table(large).select(polars.col("value").sum()).collect().item()
""",
}
_READ = """
import sys
what, files, large, *rows = sys.argv[1:]
print({"footers": lambda: footers(files), "lookups": lambda: sum(lookup(large, int(row)) for row in rows),
       "column": lambda: column(large)}[what]())
"""


def value_of(row: int) -> int:
    return row * 7919 % 1_000_003


def put(bucket: Bucket, key: str, groups: int) -> None:
    """Row, value, and a body that does not compress: 4 MiB a row group."""
    chance = Random(key)
    schema = pyarrow.schema({"row": pyarrow.int64(), "value": pyarrow.int64(), "body": pyarrow.binary()})
    with tempfile.NamedTemporaryFile() as file:
        # Statistics of such bodies would take more room than all else in a footer.
        with pyarrow.parquet.ParquetWriter(
            file, schema, compression="none", use_dictionary=False, write_statistics=["row", "value"]
        ) as writer:
            for first in range(0, groups * GROUP_ROWS, GROUP_ROWS):
                rows = range(first, first + GROUP_ROWS)
                bodies = [chance.randbytes(ROW_BYTES) for _ in rows]
                columns = {"row": list(rows), "value": [value_of(row) for row in rows], "body": bodies}
                writer.write_table(pyarrow.table(columns, schema))
        file.flush()
        client = bucket.client()
        client.upload_file(file.name, NAME, key)
        client.close()


def measured(bucket: Bucket, reader: str, what: str) -> Iterator[Sequence[object]]:
    """The row of each pass."""
    rows = Random(what).sample(range(LARGE_GROUPS * GROUP_ROWS), 60)
    expected = {
        "footers": FILES * FILE_GROUPS * GROUP_ROWS, "lookups": sum(map(value_of, rows)),
        "column": sum(map(value_of, range(LARGE_GROUPS * GROUP_ROWS))),
    }  # fmt: skip
    with Simulator(bucket.address) as simulator, Proxy(bucket, simulator.endpoint) as proxy:
        environ = for_child(
            os.environ | bucket.environment(), endpoint=proxy.endpoint, admin=proxy.admin, region=REGION,
            needs_keys=False,
        )  # fmt: skip
        command: list[str | Path] = [commands_of(reader) / "python", "-c", _READERS[reader] + _READ]
        command += [what, f"{NAME}/files/*.parquet", f"{NAME}/large.parquet", *map(str, rows)]
        for number in range(PASSES):
            simulator.reset()
            before, asked = proxy.metric("outrider_served_bytes_total"), proxy.metric("outrider_requests_total")
            done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S)
            assert int(done.stdout) == expected[what], "not what the bucket has"
            proxy.settle()
            taken, given = proxy.metric("outrider_served_bytes_total") - before, simulator.counts()
            requests = int(proxy.metric("outrider_requests_total") - asked), given.requests
            megabytes = (f"{size / 1e6:.2f}" for size in (taken, given.body_bytes))
            yield reader, what, number + 1, *requests, *megabytes, f"{given.body_bytes / taken:.1f}"


def main() -> None:
    files = {f"files/{number:03d}.parquet": FILE_GROUPS for number in range(FILES)}
    with Bucket() as bucket:
        bucket.make_bucket(NAME)
        for key, groups in (files | {"large.parquet": LARGE_GROUPS}).items():
            put(bucket, key, groups)
        print("| reader | reads | pass | requests | to the bucket | MB taken | MB of the bucket | ratio |")
        print("| --- | --- " + "| --: " * 6 + "|")
        for case in product(_READERS, ("footers", "lookups", "column")):
            for row in measured(bucket, *case):
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
