# Stentor for a node with NVIDIA GPUs:
#
#   docker build -t stentor .
#   docker run --gpus all -p 8000:8000 -v stentor-cache:/cache stentor serve OWNER/NAME
#
# It builds for amd64 and arm64 (docker buildx build --platform linux/amd64,linux/arm64 .), best on a machine of each: to compile
# GPU kernels (PRECOMPILED) imports torch, which crashes under qemu 7.2, where /proc/cpuinfo shows another kind of processor.
# For a node without GPUs: --build-arg BASE=ubuntu:24.04
#                          --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu --build-arg PRECOMPILED=

# torch's wheels bring CUDA's libraries; the image brings what ties them to the node's driver.
ARG BASE=nvidia/cuda:13.0.2-base-ubuntu24.04

FROM ${BASE} AS base
# The compiler and Python's headers stay in the image: CPU kernels that were not built ahead are built for the CPU they run
# on, and Triton builds its launchers. libatomic1 has the loads and stores of channels on arm64.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ libatomic1 python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/stentor/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS build
ARG TORCH_INDEX=""
WORKDIR /build
COPY constraints.txt ./
# torch first and alone: a layer of gigabytes that a change of the sources leaves as it is.
RUN python3.12 -m venv /opt/stentor \
    && pip install -c constraints.txt pip setuptools \
    && pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE __init__.py py.typed ./
COPY protocols protocols
COPY kernels kernels
COPY engine engine
COPY server server
COPY loadtest loadtest
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --no-build-isolation ".[all]"
# CPU kernels for kinds of x86-64 processors: a first start on one of these compiles none.
RUN python -P -m stentor.kernels.native.prebuilt
# Kernels of models with these shapes, for GPUs of this compute capability (90 is Hopper): a first start finds them, and
# compiles what others need.
ARG CAPABILITY=90
ARG PRECOMPILED="llama-3.1-8b qwen3-1.7b qwen3-32b qwen3-30b-a3b"
RUN mkdir -p /opt/stentor/kernels \
    && for model in $PRECOMPILED; do \
         stentor precompile "loadtest/configs/$model" --load-format dummy --capability "$CAPABILITY" --output /opt/stentor/kernels \
         || exit 1; \
       done

FROM base AS runtime
LABEL org.opencontainers.image.title="stentor" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/stentor /opt/stentor
RUN useradd --create-home --uid 10001 stentor \
    && install -d -o stentor -g stentor /cache
# Models, compiled kernels and Hugging Face's files: all in the one volume.
ENV XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/triton \
    TRITON_PRECOMPILED_DIR=/opt/stentor/kernels \
    STENTOR_HOST=0.0.0.0 \
    PYTHONUNBUFFERED=1
USER stentor
WORKDIR /home/stentor
VOLUME /cache
EXPOSE 8000
# A first start fetches a model, which may take long; until it answers, the container is "starting".
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["stentor"]
CMD ["serve"]
