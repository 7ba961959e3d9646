# libc10_cuda.so of PyTorch's CUDA build; to be sourced after common.sh.
#
# The tests run PyTorch's own caching allocator over a simulated CUDA. Only the CUDA wheel has it, so that is fetched once, and of its
# half gigabyte one library of less than two megabytes is kept.

c10_cuda_folder=.cache/c10_cuda
c10_cuda_version=2.13.0

# Leaves .cache/c10_cuda/libc10_cuda.so, or a line in .cache/c10_cuda/why_not and returns 1. Where the same was tried in vain within the
# last hour, it is not tried again.
setup_c10_cuda() {
  local here=$c10_cuda_folder version stage
  [[ -e $here/libc10_cuda.so && $(cat "$here/version" 2>/dev/null) == "$c10_cuda_version" ]] && return 0
  [[ -n $(find "$here/why_not" -mmin -60 2>/dev/null) ]] && return 1
  mkdir -p "$here"
  rm -f "$here/libc10_cuda.so" "$here/why_not"
  version=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null) || version=none
  if [[ $version != "$c10_cuda_version" ]]; then
    echo "the torch of .venv is $version and not $c10_cuda_version" >"$here/why_not"
    return 1
  fi
  say "fetching libc10_cuda.so out of torch's CUDA wheel into $root/$here (half a gigabyte, once)"
  # Not /tmp, which may be a small memory disk.
  stage=$(mktemp -d .cache/c10_cuda_wheel.XXXXXX)
  if ! download_c10_cuda "$stage" >"$stage/log" 2>&1; then
    { tail -n 1 "$stage/log" | grep . || echo 'the download failed'; } >"$here/why_not"
    rm -rf "$stage"
    return 1
  fi
  echo "$c10_cuda_version" >"$here/version"
  mv "$stage/out/torch/lib/libc10_cuda.so" "$here/"
  rm -rf "$stage"
}

download_c10_cuda() {
  local stage=$1
  # Three equal signs: the version without a local part, which is that of the CUDA build; `==2.13.0` is met by 2.13.0+cpu as well.
  # No cache: pip would keep half a gigabyte, twice.
  "$python" -m pip download --quiet --no-deps --no-cache-dir --disable-pip-version-check --only-binary :all: \
    --dest "$stage" "torch===$c10_cuda_version" &&
    "$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("torch/lib/libc10_cuda.so", sys.argv[2])' \
      "$stage"/torch-*.whl "$stage/out"
}
