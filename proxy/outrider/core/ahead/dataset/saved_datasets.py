"""The learned datasets and orders as bytes, so that they outlive the process: compressed JSON."""

from __future__ import annotations

import json
import zlib
from array import array
from typing import Any

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.templates import template_of
from outrider.core.ahead.order.saved_order import SavedOrder

_FORMAT = 1
# The most that one of our own files unpacks to: a million keys of 200 bytes.
_BYTES_MAX = 256 * 2**20


def packed(datasets: list[Dataset]) -> bytes:
    """The names, sizes and orders of the datasets that were listed, or were read in epochs."""
    records = []
    for dataset in datasets:
        orders = dataset.job_table.remembered()
        if orders or dataset.names.listed:
            names = dataset.names
            # In the file an object's index is called its key, and a numbered dataset a counted one: that stays, or
            # older files could not be read.
            records.append({
                "bucket": dataset.bucket,
                "template": dataset.template,
                "keys": list(names.keys),
                "sizes": names.sizes.tolist(),
                "listed": names.listed.tolist(),
                "counted": dataset.discovery.is_numbered,
                "orders": [{"keys": order.sequence().tolist(), "period_s": order.period_s} for order in orders],
            })  # fmt: skip
    text = json.dumps({"format": _FORMAT, "datasets": records}, separators=(",", ":"))
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpacked(data: bytes) -> list[Dataset]:
    """Raises ValueError: `packed` did not write these bytes."""
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(data, _BYTES_MAX)
        if inflate.unconsumed_tail:
            raise ValueError("longer than anything we have written")
        file = json.loads(text.decode("utf-8", "surrogatepass"))
        if file["format"] != _FORMAT:
            raise ValueError(f"format {file['format']}")
        return [_dataset(record) for record in file["datasets"]]
    except (zlib.error, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not the memory of a planner: {error}") from error


def _dataset(record: dict[str, Any]) -> Dataset:
    keys, sizes, listed, orders = (record[name] for name in ("keys", "sizes", "listed", "orders"))
    if (
        not all(isinstance(value, list) for value in (keys, sizes, listed, orders))
        or len(keys) != len(sizes)
        or not keys
    ):
        raise ValueError("keys and sizes do not fit")
    dataset = Dataset(str(record["bucket"]), str(record.get("template") or template_of(keys[0])))
    for key, size in zip(keys, sizes, strict=True):
        dataset.names.sizes[dataset.names.add(str(key))] = int(size)
    # Without a LIST, the keys that were read take its place. A key of unknown size was never read: there may be no
    # such object.
    known = listed or sorted((index for index, size in enumerate(sizes) if size >= 0), key=keys.__getitem__)
    dataset.names.list((keys[index], sizes[index]) for index in known)
    dataset.discovery.is_numbered = dataset.discovery.numbering_tried = bool(listed and record.get("counted"))
    dataset.discovery.is_whole = bool(listed)
    count = len(dataset.names.keys)
    for order in orders:
        sequence = array("i", order["keys"])
        if sequence and not 0 <= min(sequence) <= max(sequence) < count:
            raise ValueError("an order of unknown keys")
        if len(set(sequence)) < len(sequence):
            raise ValueError("an order that has a key twice")
        dataset.job_table.learned.append(SavedOrder(sequence, None, count, float(order["period_s"])))
    return dataset
