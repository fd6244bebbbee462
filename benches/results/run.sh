#!/bin/sh
# Measures every engine on this machine and reports on it, into a folder of its own:
#
#     benches/results/run.sh FOLDER [LABEL]
#
# RSA of 2048 and 4096 bits and Ed25519, relaxed/relaxed, 4 KB, signing and verifying, one thread. SECONDS_EACH (5) is the
# length of each window, and ROUNDS (3) how often all of it is done, so that each engine has its turn in each round; the
# report has the medians. In FOLDER are then one JSON file per run, and report.txt, report.md and report.svg.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: $0 FOLDER [LABEL]" >&2
    exit 64
fi
folder=$1
label=${2:-}
seconds=${SECONDS_EACH:-5}
rounds=${ROUNDS:-3}
root=$(cd "$(dirname "$0")/../.." && pwd)
programs=$root/target/release
mkdir -p "$folder"

(cd "$root" && cargo build --release --quiet --package dkim-benches --bins)

# Keys are made once, so that every engine and every round works with the same.
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
for bits in 2048 4096; do
    openssl genpkey -quiet -algorithm RSA -pkeyopt "rsa_keygen_bits:$bits" -out "$keys/rsa-$bits"
done
openssl genpkey -algorithm ED25519 -out "$keys/ed25519"

# The first one needs a processor that has its instructions.
engines="aws-lc rustcrypto"
if grep -q ' avx512ifma' /proc/cpuinfo; then
    engines="aws-lc-ifma $engines"
fi

round=1
while [ "$round" -le "$rounds" ]; do
    for key in rsa-2048 rsa-4096 ed25519; do
        for engine in $engines; do
            for task in sign verify; do
                file=$folder/$key-$engine-$task-$round.json
                "$programs/t-${task}perf" -h relaxed -b relaxed -m 4096 -t "$seconds" --engine "$engine" \
                    --key "$keys/$key" ${label:+--label "$label"} --json > "$file.part"
                mv "$file.part" "$file"
            done
        done
    done
    round=$((round + 1))
done

report() {
    "$programs/bench" report "$folder"/*.json --format "$1" --out "$folder/report.$2"
}
report text txt
report markdown md
report svg svg
cat "$folder/report.txt"
