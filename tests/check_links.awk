# See check_links.sh: the floors, then lines of "object T|U symbol".
function folder(object) { return sub(/\/[^\/]*$/, "", object) ? object : "." }

# The floor of a folder: the longest row that is the folder or above it.
function floor_of(dir) {
    while (!(dir in may) && sub(/\/[^\/]*$/, "", dir)) continue
    return dir in may ? dir : ""
}

function below(dir, name) { return dir == name || index(dir, name "/") == 1 }

function allowed(from, to, i, n, names) {
    if (from == to || may[from] ~ /(^| )any( |$)/) return 1
    n = split(may[from], names, " ")
    for (i = 1; i <= n; i++)
        if (below(to, names[i])) return 1
    return 0
}

# Public functions are all that those may use who see the library from outside.
function public(symbol) { return symbol ~ /^etch_[^_]/ || symbol == "ETCH_NONE" }

function fault(text) { print text; faults++ }

# reach(a, b, arrows): whether arrows lead from a to b.
function reach(a, b, arrows, seen, i, stack, n, list, m) {
    delete seen
    stack[n = 1] = a
    while (n > 0) {
        a = stack[n--]
        m = split(arrows[a], list, " ")
        for (i = 1; i <= m; i++) {
            if (list[i] == b) return 1
            if (!(list[i] in seen)) { seen[list[i]] = 1; stack[++n] = list[i] }
        }
    }
    return 0
}

FNR == NR {
    if ($0 ~ /^#/ || !sub(/:/, "")) next
    name = $1; $1 = ""; may[name] = $0
    next
}
$2 == "T" { if (!($3 in home)) home[$3] = $1; objects[$1] = 1 }
$2 == "U" { user[++nuses] = $1; used[nuses] = $3; objects[$1] = 1 }

END {
    for (u = 1; u <= nuses; u++) {
        a = user[u]; b = home[used[u]]
        if (b == "" || a == b) continue
        from = folder(a); to = folder(b)
        if (from == to) { if (!((a, b) in inner)) { inner[a, b] = 1; arrows[a] = arrows[a] " " b }; continue }
        f = floor_of(from); t = floor_of(to)
        if (f == "" ) fault(a ": its folder has no row in tests/floors.def")
        else if (f != t && !allowed(f, to) && !(may[f] ~ /public/ && public(used[u])))
            fault(a " must not use " used[u] " of " b)
        if (from != to && !((from, to) in outer)) {
            outer[from, to] = 1; between[from] = between[from] " " to; example[from, to] = a " uses " used[u] " of " b
        }
    }
    for (pair in outer) {
        split(pair, p, SUBSEP)
        if (p[1] < p[2] && reach(p[2], p[1], between) && reach(p[1], p[2], between))
            fault("a cycle of folders: " p[1] " and " p[2] ": " example[p[1], p[2]])
    }
    for (object in objects) {
        if (object in done) continue
        n = 1; names = object
        for (other in objects)
            if (other != object && folder(other) == folder(object) && reach(object, other, arrows) && reach(other, object, arrows)) {
                n++; names = names " " other; done[other] = 1
            }
        if (n > largest) largest = n
        if (n > 3) fault("a cycle of " n " objects: " names)
    }
    printf "links: %d arrows between folders, largest cycle inside a folder %d\n", length(outer), largest
    exit faults > 0
}
