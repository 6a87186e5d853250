"""The bucket `training` that the code of docs/frameworks.md reads: the numbers 0 to 999 in each form."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME = "training"
FILES, ROWS = 4, 250
BODY_BYTES = 4000


def fill(bucket: Bucket) -> None:
    client = bucket.client()
    bucket.make_bucket(NAME)
    for key, body in objects():
        client.put_object(Bucket=NAME, Key=key, Body=body)
    client.close()


def objects() -> Iterator[tuple[str, bytes]]:
    for file in range(FILES):
        numbers = range(file * ROWS, (file + 1) * ROWS)
        yield f"table/part-{file}.parquet", _parquet(numbers)
        yield f"shards/{file:06d}.tar", _tar(numbers)
        yield f"lines/part-{file}.jsonl", "".join(_line(number) for number in numbers).encode()
    for number in range(0, 1000, 125):
        yield f"samples/{number:06d}.bin", _body(number)
    yield "model/model.safetensors", _safetensors()


def _line(number: int) -> str:
    return json.dumps({"number": number, "text": f"sample {number} " * 10}) + "\n"


def _body(number: int) -> bytes:
    return bytes((number + at) % 251 for at in range(BODY_BYTES))


def _parquet(numbers: range) -> bytes:
    table = pyarrow.table({"number": list(numbers), "body": [_body(number) for number in numbers]})
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out, row_group_size=100)
    return out.getvalue()


def _tar(numbers: range) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in numbers:
            for ending, body in (("json", json.dumps({"number": number}).encode()), ("bin", _body(number))):
                info = tarfile.TarInfo(f"{number:06d}.{ending}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


def _safetensors() -> bytes:
    """Two tensors of 500 float32 each, with 0 to 999: https://huggingface.co/docs/safetensors."""
    head = {
        f"layer.{half}": {"dtype": "F32", "shape": [500], "data_offsets": [half * 2000, (half + 1) * 2000]}
        for half in (0, 1)
    }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + struct.pack("<1000f", *range(1000))
