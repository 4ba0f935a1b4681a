# The catalog server, on what uv.lock names. `docker build -t lancehouse .`; docs/deploy.md has the rest.
FROM python:3.12.11-slim-bookworm AS build
RUN pip install --no-cache-dir uv==0.13.7
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /build
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-default-groups --no-install-project --extra server --extra postgres --extra aws
COPY src src
RUN uv sync --frozen --no-default-groups --no-editable --extra server --extra postgres --extra aws

FROM python:3.12.11-slim-bookworm
RUN useradd --system --uid 10001 --create-home --home-dir /data lancehouse
COPY --from=build /build/.venv /build/.venv
ENV PATH=/build/.venv/bin:$PATH PYTHONUNBUFFERED=1 XDG_DATA_HOME=/data LANCEHOUSE_HOST=0.0.0.0
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8181
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8181/health/ready', timeout=4)"]
ENTRYPOINT ["lancehouse"]
CMD ["serve"]
