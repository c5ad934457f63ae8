# For the examples with an S3 server: finds the programs, starts the server and a daemon with the store `photos`, and ends both. It is
# sourced by their `run`, which sets $name, and then has $dir (a temporary folder), $pilot, $endpoint, $bucket and `of_s3`.
#
# It needs `pilot` (on PATH, in target/, or as $PILOT_BIN), curl, and versitygw, an S3 server: on PATH, in target/tools (where
# `scripts/test data` puts it), as $VERSITYGW, or Go to install it. Ports: $S3_PORT (9190) and $PILOT_PORT (8190).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
version=v1.8.0
s3_port=${S3_PORT:-9190} pilot_port=${PILOT_PORT:-8190}
key_id=pilotlight secret='a key for this example'
photograph=$here/../image/astronaut.jpg

fail() { printf '%s: %s\n' "$name" "$1" >&2; exit 1; }

# The first of these programs that is there.
find_program() {
    local candidate
    for candidate in "$@"; do
        if [[ -n $candidate ]] && command -v "$candidate" >/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

pilot=$(find_program "${PILOT_BIN:-}" "$root/target/release/pilot" "$root/target/debug/pilot" pilot) ||
    fail 'there is no pilot: run `cargo build --release -p pilot`, or set PILOT_BIN'
command -v curl >/dev/null || fail 'curl is not installed'
s3=$(find_program "${VERSITYGW:-}" "$root/target/tools/versitygw" versitygw) || {
    command -v go >/dev/null ||
        fail 'there is no S3 server: install versitygw (https://github.com/versity/versitygw/releases) or Go, or set VERSITYGW'
    echo "installing versitygw $version into target/tools (once)"
    GOBIN=$root/target/tools go install -ldflags '-s -w' "github.com/versity/versitygw/cmd/versitygw@$version"
    s3=$root/target/tools/versitygw
}

dir=$(mktemp -d)
started=()
finish() {
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Waits until a command succeeds, at most 20 s, as long as the program runs.
until_ready() {
    local pid=$1 log=$2
    shift 2
    for ((i = 0; i < 200; i++)); do
        "$@" >/dev/null 2>&1 && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    cat "$log" >&2
    fail "$log says why it did not start"
}

of_s3() {
    curl --silent --show-error --fail --aws-sigv4 aws:amz:us-east-1:s3 --user "$key_id:$secret" \
        --header 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@"
}

bucket=http://127.0.0.1:$s3_port/photos
endpoint=(--endpoint "unix:$dir/data/control.sock")

# The S3 server, with an empty bucket.
start_s3() {
    mkdir "$dir/objects"
    (cd "$dir" && exec "$s3" --access "$key_id" --secret "$secret" --port "127.0.0.1:$s3_port" posix objects >"$dir/s3.log" 2>&1) &
    started+=($!)
    until_ready $! "$dir/s3.log" of_s3 --request PUT "$bucket"
}

# The daemon. Its argument is the function that may use the store.
start_daemon() {
    printf '%s' "$secret" >"$dir/secret"
    chmod 600 "$dir/secret"
    cat >"$dir/pilotd.toml" <<CONFIG
[stores.photos]
kind = "s3"
functions = ["$1"]
endpoint = "http://127.0.0.1:$s3_port"
access_key_id = "$key_id"
secret_access_key_file = "$dir/secret"
region = "us-east-1"
CONFIG
    "$pilot" serve --listen "127.0.0.1:$pilot_port" --data-dir "$dir/data" --config "$dir/pilotd.toml" >"$dir/daemon.log" 2>&1 &
    started+=($!)
    until_ready $! "$dir/daemon.log" curl --silent --fail --unix-socket "$dir/data/control.sock" http://localhost/readyz
}

# Copies files of the example, and its manifest with the port of the server, to $dir/function.
copy_function() {
    mkdir "$dir/function"
    (cd "$here" && cp -R "$@" "$dir/function")
    sed "s|127.0.0.1:9190|127.0.0.1:$s3_port|" "$here/pilot.toml" >"$dir/function/pilot.toml"
}

# Until Ctrl-C.
wait_for_user() {
    echo "try: $1"
    echo 'Ctrl-C ends everything'
    wait
}
