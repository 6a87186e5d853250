"""Errors: those that a client gets as S3 errors, and the signals between packages of the proxy.

An `S3Error` reaches a client; only `http/` turns it into XML. A `Signal` never reaches one.
Source of codes and statuses: S3 API reference, "List of error codes".
"""

from __future__ import annotations

from copy import copy
from enum import Enum, auto
from math import ceil


class S3Error(Exception):
    """A refusal that a client gets: an S3 error code, its HTTP status, and a sentence that says what to do."""

    code = "InternalError"
    status = 500
    message = "We encountered an internal error. Please try again."

    def __init__(self, message: str | None = None, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message or self.message)
        self.text = message or self.message
        self.headers = headers


class InternalError(S3Error):
    """A bug of the proxy, which was logged before."""


class AccessDenied(S3Error):
    code, status, message = "AccessDenied", 403, "Access Denied."


class AuthorizationHeaderMalformed(S3Error):
    code, status = "AuthorizationHeaderMalformed", 400
    message = "The authorization header that you provided is not valid."


class AuthorizationQueryParametersError(S3Error):
    code, status = "AuthorizationQueryParametersError", 400
    message = "The authorization query parameters that you provided are not valid."


class InvalidAccessKeyId(S3Error):
    code, status = "InvalidAccessKeyId", 403
    message = "The access key ID that you provided does not exist in our records."


class SignatureDoesNotMatch(S3Error):
    code, status = "SignatureDoesNotMatch", 403
    message = (
        "The request signature that the server calculated does not match the signature that you provided. "
        "Check your secret key and signing method."
    )


class RequestTimeTooSkewed(S3Error):
    code, status = "RequestTimeTooSkewed", 403
    message = "The difference between the request time and the server's time is too large. Check the clock."


class ContentSha256Mismatch(S3Error):
    code, status = "XAmzContentSHA256Mismatch", 400
    message = "The provided 'x-amz-content-sha256' header does not match what was computed."


class BadDigest(S3Error):
    code, status = "BadDigest", 400
    message = "The checksum that you specified did not match what we received."


class EntityTooLarge(S3Error):
    code, status, message = "EntityTooLarge", 400, "Your proposed upload exceeds the maximum allowed size."


class EntityTooSmall(S3Error):
    code, status = "EntityTooSmall", 400
    message = "Your proposed upload is smaller than the minimum allowed object size."


class IncompleteBody(S3Error):
    code, status = "IncompleteBody", 400
    message = "You did not provide the number of bytes specified by the Content-Length HTTP header."


class InvalidArgument(S3Error):
    code, status, message = "InvalidArgument", 400, "Invalid argument."


class InvalidRequest(S3Error):
    code, status, message = "InvalidRequest", 400, "Invalid request."


class InvalidBucketName(S3Error):
    code, status, message = "InvalidBucketName", 400, "The specified bucket is not valid."


class KeyTooLong(S3Error):
    code, status, message = "KeyTooLongError", 400, "Your key is too long"


class InvalidPolicyDocument(S3Error):
    code, status = "InvalidPolicyDocument", 400
    message = "The content of the form does not meet the conditions specified in the policy document."


class InvalidRange(S3Error):
    code, status, message = "InvalidRange", 416, "The requested range is not satisfiable."


class MalformedPOSTRequest(S3Error):
    code, status = "MalformedPOSTRequest", 400
    message = "The body of your POST request is not well-formed multipart/form-data."


class MaxPostPreDataLengthExceeded(S3Error):
    code, status = "MaxPostPreDataLengthExceededError", 400
    message = "Your POST request fields preceding the upload file were too large."


class MissingContentLength(S3Error):
    code, status, message = "MissingContentLength", 411, "You must provide the Content-Length HTTP header."


class MethodNotAllowed(S3Error):
    code, status = "MethodNotAllowed", 405
    message = "The specified method is not allowed against this resource."


class NoSuchKey(S3Error):
    code, status, message = "NoSuchKey", 404, "The specified key does not exist."


class NoRoom(S3Error):
    """507 and not 503, since clients repeat what was answered with 503."""

    code, status, message = "InsufficientStorage", 507, "There is not enough room in the cache."


class PreconditionFailed(S3Error):
    code, status = "PreconditionFailed", 412
    message = "At least one of the preconditions that you specified did not hold."


class BadRequest(S3Error):
    code, status, message = "BadRequest", 400, "The request is not valid HTTP."


class RequestTimeout(S3Error):
    code, status = "RequestTimeout", 400
    message = "Your socket connection to the server was not read from or written to within the timeout period."


class SlowDown(S3Error):
    code, status, message = "SlowDown", 503, "Please reduce your request rate."


class ServiceUnavailable(S3Error):
    code, status, message = "ServiceUnavailable", 503, "The origin cannot be reached. Please try again."


class Signal(Exception):
    """Passes between packages of the proxy. A signal that reaches a client is a bug."""


class VersionChanged(Signal):
    """The origin no longer has the requested version: it answered 412 or another ETag, or the object is gone."""


class StoreUnavailable(Signal):
    """The block store cannot take or give a block: it is full or pinned full, or the disk fails. The origin serves
    instead."""


class WrongDigest(Signal):
    """The bytes of a block do not have the digest that the peer stated that sent them. None of them is kept."""


class Broke(Enum):
    """How an exchange with a server ended without a whole reply."""

    CONNECT = auto()
    """No connection."""
    LATE = auto()
    """Nothing came for too long."""
    UNREADABLE = auto()
    """The reply is not HTTP, or says two things about where it ends."""
    OTHER = auto()
    """The connection ended, or the request was given up."""


class OriginBroke(Signal):
    """The origin gave no reply, or stopped in the middle of one. The text says how, and holds no secret.

    `retry_after_s`: how long it asked to wait before the next try; 0: it did not. `lasting`: the origin is neither busy
    nor away, and will most likely fail in the same way as long as anybody waits.
    """

    def __init__(
        self, *args: object, cause: Broke = Broke.OTHER, retry_after_s: float = 0.0, lasting: bool = False
    ) -> None:
        super().__init__(*args)
        self.cause = cause
        self.retry_after_s = retry_after_s
        self.lasting = lasting


class OriginBusy(OriginBroke):
    """The origin was not asked: no connection to it came free in time."""


def without_traceback(error: Exception) -> Exception:
    """A copy of `error` without its traceback and its causes, to be kept or raised in its place.

    A traceback knows the frames that the error came through. A frame may hold the object that keeps the error, and
    only the garbage collector could free that reference cycle.
    """
    return copy(error) if isinstance(error, Signal | S3Error | OSError) else error


def unanswered(why: OriginBroke) -> S3Error:
    """The error for a client whose request got no reply from the origin."""
    if isinstance(why, OriginBusy):
        return SlowDown("All connections to the origin are in use.", headers=(("retry-after", "1"),))
    after_s = max(1, ceil(why.retry_after_s))
    return ServiceUnavailable(f"The origin does not answer: {why}.", headers=(("retry-after", str(after_s)),))
