#!/bin/sh
# Compiles crates of this workspace with libFuzzer's counters.
rustc=$1
shift
case " $* " in
*" --crate-name tensorquery "* | *" --crate-name tensorquery_fuzz "*)
  exec "$rustc" "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares ;;
*) exec "$rustc" "$@" ;;
esac
