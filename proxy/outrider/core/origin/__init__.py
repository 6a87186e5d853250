"""The pace of requests to the origin, and the causes of its errors. Imports no other package of core.

Three limits bound the fills. The scheduler in `engine.fill` applies the first two; prefetch and warm-ups apply the
third.

- `AimdLimit` (`fill_limits`) limits all fills. It starts with a doubling, adds fills while they bring more bytes, and
  halves when the origin throttles (503 SlowDown, 429).
- `BackgroundLimit` limits prefetch, so that it takes no bandwidth from demand: by the total rate of large bodies, and
  by the delay of small ones (LEDBAT).
- `token_bucket` is the hard bandwidth limit that a setting gives to prefetch, or a client to its warm-up.

`fair_turns` says which tenant is next where several want the line.

A request that fails is tried again after a `backoff` with jitter. A reply that is later than 99 % of the recent ones
gets a hedged request, within a budget (`hedging`). `error_causes` says whether a refusal blames the proxy's clock or
its credentials, so that the origin adapter can mend them and sign anew, and takes secrets out of error bodies.
`oddities` names the ways in which origins differ from AWS S3. `reply_reader` reads replies from bytes, and `reply_head`
mends their heads.

Entry points: `fill_limits.AimdLimit`, `fill_limits.BackgroundLimit`, `token_bucket.TokenBucket`, `backoff.Backoff`,
`hedging.Hedging`, `error_causes`, `oddities.Oddity`, `reply_reader.ReplyReader`.
"""
