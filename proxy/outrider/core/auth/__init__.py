"""Authentication and authorisation of requests, where the setting `auth` is `sigv4`. Loopback mode checks neither.

1. `verification.verify` finds the signature of a request: Signature Version 4 in the Authorization header or in a
   presigned URL, or a `sigv2` URL. It verifies the signature with the secret of the client key, and returns the
   `Identity`. A browser's upload is signed by its policy instead: `form_policy.signer_of` verifies that, and
   `parse_policy` reads which forms it allows.
2. The signature must cover each header and query parameter that could change the meaning of the request, since the
   proxy signs the forwarded request anew.
3. `grants.missing_grant` then checks that the grants of the `Client` cover all objects and buckets that the request
   touches. A hit is authorised exactly as a miss is.

The way up: `sigv4.sign_headers` and `form_policy.signed_anew` sign the request to the origin with the proxy's own
credentials. `SigningKeys` keeps derived keys for both directions.

`browser_guard` protects loopback mode, where no request is signed, against web pages (CSRF and DNS rebinding).

Entry points: `verification.verify`, `sigv4.sign_headers`, `form_policy.signer_of`, `grants.missing_grant`,
`browser_guard`.
"""
