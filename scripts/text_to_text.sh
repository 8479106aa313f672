#!/usr/bin/env bash
# From a text to a model that transformers loads, in minutes on two cores: tokens, training, evaluation, generated text, export.
#   scripts/text_to_text.sh [--out DIR] [--prompt TEXT] [--set section.key=value]... [FILE]...
# FILE is configs/data/tinyshakespeare.txt unless given; outputs go to DIR, runs/text_to_text by default. The job is
# configs/text_to_text.toml, the tokenizer configs/data/tokenizer. Run again, it resumes an interrupted training. With
# PPTRAIN=PROGRAM it uses that program, and neither sets up nor builds anything.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

out=$root/runs/text_to_text
prompt=ROMEO:
settings=()
files=()
while (($#)); do
  case $1 in
    --out | --prompt | --set) (($# > 1)) || exit_code=2 die "$1 needs a value; see scripts/text_to_text.sh --help" ;;&
    --out) out=$(realpath -m -- "$2") && shift 2 ;;
    --prompt) prompt=$2 && shift 2 ;;
    --set) [[ ! $2 =~ ^\ *run\.dir\ *= ]] || exit_code=2 die "--set $2: use --out DIR; the run is in DIR/model" ;;&
    --set) settings+=(--set "$2") && shift 2 ;;
    -h | --help) sed -n '2,6s/^# *//p' "$0" && exit ;;
    -*) exit_code=2 die "unknown option $1; see scripts/text_to_text.sh --help" ;;
    *) files+=("$(realpath -- "$1")") && shift ;;
  esac
done
((${#files[@]})) || files=(configs/data/tinyshakespeare.txt)

if [[ -z ${PPTRAIN:-} ]]; then
  lock_checkout
  ensure_packages
  ensure_toolchain
  build release pptrain
  unlock_checkout
  PPTRAIN=build/pptrain
else
  program=$(type -P -- "$PPTRAIN") || exit_code=2 die "PPTRAIN=$PPTRAIN: there is no such program"
  PPTRAIN=$(realpath -- "$program")
fi
cd "$root"  # the job names its tokenizer from there
mkdir -p "$out"
tokens=${out//\\/\\\\}/tokens.bin
tokens=${tokens//\"/\\\"}  # in TOML's quotes: without them a comma would make it two paths
job=(--config configs/text_to_text.toml --set "run.dir=$out/model" --set "data.path=[\"$tokens\"]" "${settings[@]}")

step() {  # step TITLE COMMAND...: shows both and runs the command
  printf '\n== %s\n$' "$1" >&2
  shift
  printf ' %q' "$@" >&2
  printf '\n' >&2
  "$@"
}

step "Tokens of the text" "$PPTRAIN" tokenize --tokenizer configs/data/tokenizer --out "$out/tokens" --overwrite "${files[@]}"
step "Training" "$PPTRAIN" "${job[@]}"
step "Loss on text that was held out" "$PPTRAIN" eval "${job[@]}"
step "Text that goes on from a prompt" "$PPTRAIN" generate "${job[@]}" --prompt "$prompt" --max-tokens 120 --temperature 0.8 --top-k 50
step "Export" "$PPTRAIN" convert --from "$out/model" --to "$out/huggingface" --tokenizer configs/data/tokenizer --overwrite

cat <<END

In $out:
  tokens.bin, tokens.idx    the text as tokens
  model/                    the run: metrics.jsonl, job.toml, checkpoints/
  huggingface/              the same model for other programs. In Python:
    model = transformers.AutoModelForCausalLM.from_pretrained("$out/huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained("$out/huggingface")
END
