#!/usr/bin/env bash
# check_report.sh SAMPLE [DIGITS]: runs test_report's sample program and the example with ETCH_TRACE,
# and lets a browser draw the pages: the script must run to its end and draw each function and each
# box of the trees, and names full of markup must stay text. Without a browser: 77, a skip.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
browser=
for name in chromium chromium-browser google-chrome chrome; do
    if browser=$(command -v $name); then break; fi
done
if [ -z "$browser" ]; then
    echo "report: skipped, there is no chromium here to draw the page"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ETCH_CACHE_DIR=$folder/cache ETCH_LOGS_OUT=$folder/log
status=0
fail() { echo "report: $*"; status=1; }

# Chooses each box in turn, unfolds all, follows each link to a kernel: an exception stops it early.
poke='<script>
const seen = { boxes: 0, kernels: 0 };
for (const box of document.querySelectorAll("g.box")) {
    box.dispatchEvent(new MouseEvent("click"));
    if (box.closest("section").querySelector(".detail h4").textContent) seen.boxes++;
}
for (const link of document.querySelectorAll("tr.kernel a")) {
    link.click();
    if (document.querySelector("#kernels pre").textContent.startsWith("kernel ")) seen.kernels++;
}
document.body.dataset.poked = seen.boxes + " " + seen.kernels;
</script>'

# draw NAME [MORE]: the page's document after its script, and more behind it, have run, into dom.
draw() {
    local page=$folder/$1.html
    cp "$folder/$1"/*.html "$page"
    [ -z "${2:-}" ] || echo "$2" >>"$page"
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$folder/profile" \
        --virtual-time-budget=20000 --dump-dom "file://$page" \
        >"$folder/dom" 2>"$folder/messages" || fail "$1: the browser failed"
    dom=$(cat "$folder/dom")
}
count() { grep -o -- "$1" <<<"$dom" | wc -l; }
# expect WHAT PATTERN COUNT
expect() {
    local n
    n=$(count "$2")
    [ "$n" -eq "$3" ] || fail "$1: expected $3, got $n"
}
# drawn NAME FUNCTIONS BOXES KERNELS
drawn() {
    draw "$1"
    expect "$1: the script's last word" '<body[^>]*data-ready="yes"' 1
    expect "$1: functions" '<section class="function"' "$2"
    expect "$1: boxes of trees" '<g class="box ' "$3"
    expect "$1: script elements" '<script' 2
    draw "$1" "$poke"
    expect "$1: boxes and kernels that show what they are" "data-poked=\"$3 $4\"" 1
}

ETCH_TRACE=$folder/sample "$1" sample
drawn sample 5 39 5
draw sample
expect "sample: compiled leaves" '<g class="box compiled' 13
expect "sample: paths over the limit" '<g class="box limit' 1
expect "sample: chosen boxes" '<g class="box [a-z]* on"' 5
expect "sample: the wild name as text" 'data-name="&lt;/script&gt;\|data-name="</script>' 1
if [ $# -gt 1 ]; then
    ETCH_TRACE=$folder/digits "$2" >/dev/null
    drawn digits 1 11 6
    draw digits
    expect "digits: the source line of the break, and of the late use behind it" '<span class="src">\*done = etch_item(change) &lt; 1e-24;' 2
    expect "digits: generated kernels" '<tr class="kernel">' 6
fi
[ $status -eq 0 ] && echo "report: ok"
exit $status
