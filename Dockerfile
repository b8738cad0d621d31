# The server, and one virtual environment per framework beside it. What is installed is the wheel, not this folder.
#   docker build --tag tensorgate .        How to run it: deploy/README.md
FROM python:3.11-slim-bookworm AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY backends backends
COPY registry registry
COPY gateway gateway

RUN pip install --constraint constraints.txt hatchling \
 && python -m hatchling build --target wheel --directory /dist

RUN python -m venv /opt/tensorgate/venv-gateway \
 && /opt/tensorgate/venv-gateway/bin/pip install --constraint constraints.txt /dist/*.whl

# A worker needs numpy, msgspec and its framework; the wheel comes without the server's dependencies.
RUN python -m venv /opt/tensorgate/venv-onnx \
 && /opt/tensorgate/venv-onnx/bin/pip install --constraint constraints.txt numpy msgspec onnxruntime \
 && /opt/tensorgate/venv-onnx/bin/pip install --no-deps /dist/*.whl


FROM python:3.11-slim-bookworm

# PYTHONSAFEPATH: no folder that the server happens to be started in is a place to import from.
ENV PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PATH=/opt/tensorgate/venv-gateway/bin:$PATH \
    TENSORGATE_DATA_DIR=/var/lib/tensorgate \
    TENSORGATE_HOST=0.0.0.0 \
    TENSORGATE_INTERPRETERS__ONNX=/opt/tensorgate/venv-onnx/bin/python

COPY --from=build /opt/tensorgate /opt/tensorgate
RUN useradd --system --uid 10001 --home-dir /var/lib/tensorgate --create-home tensorgate
USER tensorgate
WORKDIR /var/lib/tensorgate
VOLUME /var/lib/tensorgate

# REST and gRPC
EXPOSE 8000 8001

HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=2)"]

ENTRYPOINT ["tensorgate"]
CMD ["serve"]
