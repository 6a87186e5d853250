"""A browser's upload on its way to the origin. The fields are read first; the file is passed on as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from outrider.core.auth.form_policy import SizeRange
from outrider.core.errors import IncompleteBody, MalformedPOSTRequest, MissingContentLength
from outrider.core.s3.form_fields import FieldsReader, FileScanner, PostForm, boundary_of
from outrider.engine.write.upload import Upload, recording_error
from outrider.ports import Buffer


@dataclass(frozen=True, slots=True)
class IncomingForm:
    """A form whose file is still arriving. `_first`: the bytes of the file that are here. `_left`: the bytes of the
    request that follow the head of the file, `_first` included."""

    form: PostForm
    _first: bytes
    _left: int
    _source: AsyncIterator[bytes]

    def upload(self, sizes: SizeRange) -> Upload:
        """The upload to send. The end of the form is held back until the whole file was received and its size is within
        `sizes`."""
        upload = Upload(body_bytes=self._left, form=self.form)
        upload.body = recording_error(upload, self._file(sizes))
        return upload

    async def _file(self, sizes: SizeRange) -> AsyncIterator[Buffer]:
        scanner = FileScanner(self.form.boundary)
        size, left = 0, self._left
        async for chunk in self._chunks():
            left -= len(chunk)
            piece = scanner.feed(chunk)
            size += len(piece)
            sizes.check_so_far(size)
            if piece:
                yield piece
        if left:
            raise IncompleteBody
        ending = scanner.ending()
        sizes.check(size)
        assert size + len(ending) == self._left
        yield ending

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield self._first
        async for chunk in self._source:
            yield chunk


async def incoming_form(content_type: str, source: AsyncIterator[bytes], content_length: int | None) -> IncomingForm:
    """Read the fields of a form. `source`: the body of the request.

    Raises:
        MissingContentLength: the length of the form is not known, and origins accept no such form.
        S3Error: the body is no form, or its fields are too long.
    """
    if content_length is None:
        raise MissingContentLength
    reader = FieldsReader(boundary_of(content_type))
    fed = 0
    async for chunk in source:
        fed += len(chunk)
        if (found := reader.feed(chunk)) is not None:
            form, first = found
            return IncomingForm(form, first, content_length - fed + len(first), source)
    raise IncompleteBody if fed < content_length else MalformedPOSTRequest
