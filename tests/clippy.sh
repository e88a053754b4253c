#!/usr/bin/env bash
# RUSTC_WORKSPACE_WRAPPER of `make lint`: Clippy in the compiler's place, which writes no code. `cargo clippy` writes none either, but
# checks all dependencies anew first, which takes DataFusion ten minutes; like this, the libraries that the tests are linked
# with serve Clippy too.
set -euo pipefail
arguments=()
for argument in "$@"; do
  case $argument in
  --emit=*) argument=--emit=dep-info,metadata ;;
  tensorquery=*.rlib) argument=${argument%.rlib}.rmeta ;;
  esac
  arguments+=("$argument")
done
# Also called to ask for the version, and with a compiler's name first.
exec clippy-driver "${arguments[@]}" -D warnings
