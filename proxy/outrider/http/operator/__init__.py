"""The ports of `outrider operator`: `admission` answers the API server over https; `server` has both ports."""
