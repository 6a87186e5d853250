"""What can go wrong, in S3's own words, and the signals that rooms send each other.

`S3Error` reaches a client: `http/` alone turns it into XML. A `Signal` never does.
Codes and statuses: S3 API reference, "List of error codes".
"""

from __future__ import annotations

from copy import copy


class S3Error(Exception):
    """An answer to a client: an S3 error code, its status and a sentence that says what to do."""

    code = "InternalError"
    status = 500
    message = "We encountered an internal error. Please try again."

    def __init__(self, message: str | None = None, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message or self.message)
        self.text = message or self.message
        self.headers = headers


class InternalError(S3Error):
    """Our own bug, after it was logged."""


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
    """Not 503: no client is to try this again and again."""

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
    """Between rooms; reaching a client would be a bug."""


class VersionChanged(Signal):
    """The origin no longer has the version that was asked for (412, another ETag, or gone)."""


class StoreUnavailable(Signal):
    """The block store cannot take or give a block: full, pinned, sick. The origin serves instead."""


class OriginBroke(Signal):
    """The origin gave no reply, or stopped in the middle of one. The text says how, without a secret."""


class OriginBusy(OriginBroke):
    """It was not asked: no connection to it came free in time."""


def like(error: Exception) -> Exception:
    """One to keep, or to raise, in place of `error`: what is kept must know no frames, nor other errors that do, since
    those may know who keeps it. Such a circle only the garbage collector would find."""
    return copy(error) if isinstance(error, Signal | S3Error | OSError) else error


def unanswered(why: OriginBroke) -> S3Error:
    """What a client is told when its request got no reply from the origin."""
    if isinstance(why, OriginBusy):
        return SlowDown("All connections to the origin are in use.", headers=(("retry-after", "1"),))
    return ServiceUnavailable(f"The origin does not answer: {why}.")
