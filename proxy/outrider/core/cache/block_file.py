"""The format of a block file: a header that describes the file completely, then the payload.

    offset 0   magic, format, header length, meta length, payload checksum, header checksum, name   (_FIXED.size bytes)
    then       meta: UTF-8 JSON of `BlockMeta`, padded with zeros to the header length
    then       the payload: of a large block at a page-aligned offset, so that the kernel sends whole pages

A large block's header has 4 KiB unless the object's metadata needs more; that of a small one has what it needs, for a
page of padding would be a third of the disk of a sample. Format 1, of Outrider 0.2, has pages always, and no name.
Checksums are XXH3 (128 bits for the payload, 64 for the header). They find bit rot and torn writes, but no forgery:
everybody who can write to the directory is trusted.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from hashlib import blake2b

import xxhash

from outrider.core.block_layout import BlockLayout, shared_layout
from outrider.core.model import (
    BlockKey,
    Extent,
    ObjectRef,
    ObjectVersion,
    shared_headers,
    shared_text,
)

PAGE_BYTES = 4096
FORMAT = 2
_PAGED_FORMAT = 1
_MAGIC = b"OUTRIDER"
_PAGED = struct.Struct("<8sHxxII16s8s")
_FIXED = struct.Struct("<8sHxxII16s8s16s")
DIGEST_BYTES = _PAGED.size
"""The first bytes of a header, as many as `digest_of` needs."""
NAME_BYTES = _FIXED.size
"""The first bytes of a header, as many as `payload_offset_in` needs."""
# The header of a block up to this size is as long as it must be. A hit of so few bytes is a copy, wherever they begin;
# more bytes are sent by the kernel, which takes a fifth longer for those that do not begin with a page.
SMALL_BYTES = 32 * 1024
_ALIGNED_BYTES = 64
# The header of most small blocks (S3, a key of fifty letters).
_USUAL_SMALL_BYTES = 640
_FORMATS = {_PAGED_FORMAT: _PAGED, FORMAT: _FIXED}
# S3 allows 2 KiB of user metadata and a key of 1 KiB; a JSON escape can take six bytes for one.
HEADER_BYTES_MAX = 64 * 1024


class BadBlock(ValueError):
    """The file is not a complete and intact block; the message says why."""


class OtherFormat(BadBlock):
    """A block file of another format version. It may be intact, and is discarded."""


PayloadChecksum = xxhash.xxh3_128


@dataclass(frozen=True, slots=True)
class BlockMeta:
    """The block in a file: its version, its index, and the layout of the blocks."""

    layout: BlockLayout
    version: ObjectVersion
    index: int
    key: BlockKey = field(init=False, repr=False, compare=False)
    extent: Extent = field(init=False, repr=False, compare=False)
    """The bytes of the object that are the payload."""

    def __post_init__(self) -> None:
        # Not by `layout.count`: a start makes one of these for each block on disk, and there may be millions.
        if self.index < 0 or self.index * self.layout.block_bytes >= self.version.size:
            raise ValueError(f"no block {self.index} of {self.layout.block_bytes} bytes in {self.version.size}")
        # Made once: the way of a block from the origin to its readers asks for them some thirty times.
        object.__setattr__(self, "key", self.layout.key(self.version, self.index))
        object.__setattr__(self, "extent", self.layout.extent(self.index, self.version.size))


def named_block(layout: BlockLayout, version: ObjectVersion, index: int, version_id: bytes) -> BlockMeta:
    """The block, where the name of its version is known: to compute it takes as long as all the rest. Raises
    ValueError."""
    if index < 0 or index * layout.block_bytes >= version.size:
        raise ValueError(f"no block {index} of {layout.block_bytes} bytes in {version.size}")
    meta = object.__new__(BlockMeta)
    start = index * layout.block_bytes
    for name, value in (
        ("layout", layout), ("version", version), ("index", index), ("key", BlockKey(version_id, index)),
        ("extent", Extent(start, min(start + layout.block_bytes, version.size))),
    ):  # fmt: skip
        object.__setattr__(meta, name, value)
    return meta


def block_name(block: BlockKey) -> bytes:
    """16 bytes, by which a block's file is named."""
    return blake2b(block.version_id + block.index.to_bytes(8, "big"), digest_size=16).digest()


class Header:
    """The header of `meta`'s file. All of it but the payload's checksum is known before the payload is."""

    __slots__ = ("_raw", "disk_bytes", "length", "meta")

    def __init__(self, meta: BlockMeta) -> None:
        self.meta = meta
        self._raw = meta_json(meta)
        align = PAGE_BYTES if meta.extent.length > SMALL_BYTES else _ALIGNED_BYTES
        self.length = -(-(_FIXED.size + len(self._raw)) // align) * align
        """The payload's offset."""
        self.disk_bytes = -(-(self.length + meta.extent.length) // PAGE_BYTES) * PAGE_BYTES
        """The bytes of the whole file on disk, in full pages."""

    def sealed(self, payload_checksum: bytes) -> bytes:
        """The bytes of the header. `payload_checksum`: the digest of a `PayloadChecksum`."""
        if self.length > HEADER_BYTES_MAX:
            raise ValueError(f"the metadata of {self.meta.version.ref} needs a header of {self.length} bytes")
        facts = _MAGIC, FORMAT, self.length, len(self._raw), payload_checksum
        name = block_name(self.meta.key)
        seal = xxhash.xxh3_64(_FIXED.pack(*facts, bytes(8), name) + self._raw).digest()
        return (_FIXED.pack(*facts, seal, name) + self._raw).ljust(self.length, b"\0")


def usual_disk_bytes(length: int) -> int:
    """The bytes on disk of a block of `length` bytes, as nearly all blocks of this length have."""
    header = PAGE_BYTES if length > SMALL_BYTES else _USUAL_SMALL_BYTES
    return -(-(header + length) // PAGE_BYTES) * PAGE_BYTES


def payload_offset_in(head: bytes, block: BlockKey) -> int | None:
    """Where the payload begins, by the first `NAME_BYTES` of the file of a block that was verified before. None: they
    are not of this block, or of a format without a name. The header's checksum is not verified."""
    if len(head) < _FIXED.size:
        return None
    magic, version, length, _, _, _, its = _FIXED.unpack_from(head)
    return int(length) if (magic, version, its) == (_MAGIC, FORMAT, block_name(block)) else None


def digest_text(payload_checksum: bytes) -> str:
    """The payload's checksum as members of a cluster send it to each other."""
    return f"xxh3:{payload_checksum.hex()}"


def digest_of(header: bytes) -> str:
    """The digest of the payload, by the first `DIGEST_BYTES` of the header of a block that was verified. Empty: the
    bytes do not begin a block file."""
    if len(header) < DIGEST_BYTES:
        return ""
    magic, version, _, _, payload_checksum, _ = _PAGED.unpack_from(header)
    return digest_text(payload_checksum) if magic == _MAGIC and version in _FORMATS else ""


def header_length(first_page: bytes) -> int:
    """The length of the header, read from its first page.

    Raises:
        BadBlock: these bytes do not begin a block file.
    """
    if len(first_page) < _PAGED.size:
        raise BadBlock("shorter than a header")
    magic, version, length, meta_length, _, _ = _PAGED.unpack_from(first_page)
    if magic != _MAGIC:
        raise BadBlock("not a block file")
    if (fixed := _FORMATS.get(version)) is None:
        raise OtherFormat(f"format {version}, this is {FORMAT}")
    align = PAGE_BYTES if version == _PAGED_FORMAT else _ALIGNED_BYTES
    if length % align or length > HEADER_BYTES_MAX or fixed.size + meta_length > length:
        raise BadBlock("impossible header length")
    return int(length)


def decode_header(header: bytes) -> tuple[BlockMeta, bytes]:
    """The meta, and the checksum of the payload.

    Raises:
        BadBlock: the header is cut, altered, or of another format.
    """
    _, payload_checksum, name, raw = _unsealed(header)
    try:
        meta = _meta_of(json.loads(raw))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadBlock(f"header does not make sense: {error!r}") from error
    if name and name != block_name(meta.key):
        raise BadBlock("the header has another block's name")
    return meta, payload_checksum


def payload_in(header: bytes, block: BlockKey) -> tuple[int, bytes]:
    """The offset of the payload and its checksum, as `decode_header`, for a caller that needs no meta.

    Raises:
        BadBlock: the header is cut, altered, of another block, or of a format without a name.
    """
    length, payload_checksum, name, _ = _unsealed(header)
    if name != block_name(block):
        raise BadBlock("the header has another block's name")
    return length, payload_checksum


def _unsealed(header: bytes) -> tuple[int, bytes, bytes, bytes]:
    """The length, the payload's checksum, the name and the JSON of an intact header. Raises BadBlock."""
    length = header_length(header)
    if len(header) < length:
        raise BadBlock("header cut short")
    _, version, _, meta_length, payload_checksum, seal = _PAGED.unpack_from(header)
    fixed = _FORMATS[version]
    used = fixed.size + meta_length
    raw, name = header[fixed.size : used], header[_PAGED.size : fixed.size]
    unsealed = header[: _PAGED.size - len(seal)] + bytes(len(seal)) + name
    if xxhash.xxh3_64(unsealed + raw).digest() != seal or any(header[used:length]):
        raise BadBlock("header checksum does not match")
    return length, payload_checksum, name, raw


def meta_json(meta: BlockMeta) -> bytes:
    """The description of a block, as its header holds it."""
    version = meta.version
    fields = {
        "origin": meta.layout.origin,
        "bucket": version.ref.bucket,
        "key": version.ref.key,
        "etag": version.etag,
        "size": version.size,
        "headers": version.headers,
        "block_bytes": meta.layout.block_bytes,
        "index": meta.index,
    }
    if version.whole_headers:
        fields["whole"] = True
    # ASCII: bytes of keys that are no UTF-8 are surrogate escapes, which only \u escapes carry safely.
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _meta_of(fields: dict[str, object]) -> BlockMeta:
    ref = ObjectRef(shared_text(_text(fields["bucket"])), _text(fields["key"]))
    raw_headers = fields["headers"]
    if not isinstance(raw_headers, list):
        raise TypeError("headers")
    headers = shared_headers((_text(name), _text(value)) for name, value in raw_headers)
    whole = fields.get("whole") is True
    version = ObjectVersion(ref, _text(fields["etag"]), _number(fields["size"]), headers, whole)
    layout = shared_layout(_text(fields["origin"]), _number(fields["block_bytes"]))
    return BlockMeta(layout, version, _number(fields["index"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    if not value.isascii():
        value.encode("utf-8", "surrogateescape")  # a surrogate that escapes nothing could be neither hashed nor sent
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"not a number: {value!r}")
    return value
