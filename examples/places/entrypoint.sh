#!/bin/sh
# The entry point of an image: what the container is told to run is run under koila. KOILA_CPU_MEMORY and the like come by `docker run --env`.
exec koila run --quiet -- "$@"
