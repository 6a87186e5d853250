# docker build --tag outrider .
# docker run --network host --env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY --volume outrider:/var/cache/outrider outrider
#
# tests/server/test_image.py takes the steps of this file without Docker, and serves an object with the result.

FROM python:3.13.14-slim-trixie AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
# The environment of the image has no pip, since nothing is installed from within the image. The tools that build the
# wheel stay in this stage.
RUN python -m venv --without-pip /opt/outrider && python -m venv --without-pip /opt/build
COPY requirements.lock requirements-build.lock ./
RUN python -m pip --python /opt/outrider install --require-hashes --only-binary :all: -r requirements.lock \
    && python -m pip --python /opt/build install --require-hashes --only-binary :all: -r requirements-build.lock
COPY LICENSE README.md pyproject.toml ./
COPY proxy proxy
RUN python -m pip --python /opt/build wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels . \
    && python -m pip --python /opt/outrider install --no-deps --no-index --find-links /wheels outrider \
    && python -m pip --python /opt/outrider check

FROM python:3.13.14-slim-trixie
# A volume made from this directory belongs to the user of the process.
RUN ["install", "--directory", "--owner", "65532", "--group", "65532", "/var/cache/outrider"]
COPY --from=build /opt/outrider /opt/outrider
# The packages belong to root, and are compiled. The cache is `outrider` in XDG_CACHE_HOME, unless a setting names
# another directory.
ENV PATH=/opt/outrider/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/nonexistent \
    XDG_CACHE_HOME=/var/cache
USER 65532:65532
VOLUME /var/cache/outrider
EXPOSE 9480 9481
# A stop waits for requests under way: `docker stop --time 45` leaves the proxy the 30 s of drain_s.
STOPSIGNAL SIGTERM
# The check reads a settings file only if OUTRIDER_CONFIG names it. Kubernetes has probes of its own.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["outrider", "doctor", "--health"]
ENTRYPOINT ["outrider"]
CMD ["serve"]
