#!/usr/bin/env bash
# Plants faults in a copy of the sources, one at a time, and says how long the fuzzer takes to find
# each: tests/fuzz/plant.sh [NAME...]. Exit status 1: one was not found within a minute.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
copy=build-plant
names=("$@")
missed=0

# fault NAME FILE K FROM TO: FROM is replaced once by TO; every K-th program runs generated code
# (0: none).
fault() {
    local name=$1 file=$2 native=$3 from=$4 to=$5 before after
    [ ${#names[@]} -eq 0 ] || [[ " ${names[*]} " == *" $name "* ]] || return 0
    cp "$file" "$copy/$file"
    from=$from to=$to perl -0pi -e '$f = $ENV{from}; s/\Q$f\E/$ENV{to}/' "$copy/$file"
    if cmp -s "$file" "$copy/$file"; then
        printf '%-20s not planted: %s has no such text\n' "$name" "$file"
        missed=1
    elif cmake --build "$copy/build" --target etch_fuzz etch-jit >"$copy/log" 2>&1; then
        before=$(date +%s)
        if timeout 90 "$copy/build/tests/etch_fuzz" --seconds 60 --seed 1 --native "$native" \
            --failures 1 --reduce 0 >"$copy/out" 2>&1; then
            printf '%-20s NOT FOUND\n' "$name"
            missed=1
        else
            after=$(date +%s)
            printf '%-20s %3d s  %s\n' "$name" $((after - before)) \
                "$(grep -m1 '^== seed' "$copy/out" || tail -1 "$copy/out")"
        fi
    else
        printf '%-20s does not build, see %s\n' "$name" "$copy/log"
        missed=1
    fi
    cp "$file" "$copy/$file"
}

mkdir -p "$copy"
tar -c --exclude='./build*' --exclude=./.git . | tar -x -C "$copy"
[ -f "$copy/build/build.ninja" ] || cmake -S "$copy" -B "$copy/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DETCH_EXAMPLES=OFF -DETCH_BENCH=OFF >"$copy/log" 2>&1

# ---- matching
fault guard-stride guards/guard.h 0 ' || g->stride[d] != t->stride[d]' ''
fault guard-size guards/guard.h 0 'g->size[d] != t->size[d] || ' ''
fault guard-dtype guards/guard.h 0 'if (g->dtype != t->dtype || g->ndim' 'if (g->ndim'
fault state-word core/cursor.h 0 ' || n->state != etch__tls.state' ''
fault scalar-kind core/cursor.h 0 'if (unlikely(n->kind[i] != sc[i].kind)) return NULL;' ';'
fault static-attribute core/cursor.h 0 'if (unlikely(n->at[i] != at[i])) return NULL;' \
    'if (n->at[i] != at[i] && i < 0) return NULL;'
fault operand core/cursor.h 0 'if (unlikely(c->value[n->in[i]] != in[i] || !in[i])) return NULL;' \
    'if (!in[i]) return NULL;'
fault stale-scalar core/cursor.h 0 'for (int i = 0; i < nsc; i++) c->scalar[n->sc + i] = sc[i];' ''

# ---- what ends a segment
fault pair-check tracer/evaluate.c 0 \
    'while (code && !alias_fits(w, leaf, code)) code = code->next;' ''
fault late-use tracer/run.c 0 'if (leaf->writes_inputs) late_use_all(r);' ''
fault tainted tracer/tree.c 0 \
    'if (n->in[k] >= 0) tainted[n->c.out] |= tainted[n->in[k]];' ';'
fault escape tracer/run.c 0 'if (w->end == END_RETURN || h == t' 'if (h == t'
fault exposed tracer/run.c 0 'bits & EXPOSED_WRITE || (bits && writes && i == 0)' 'bits < 0'
fault view-offset tracer/evaluate.c 0 ' + (slot == OUT_INPUT ? base->offset : 0)' ''
fault leaked-capture tracer/walk.c 0 \
    'etch_release(w->c.value[leaf->bound[i]]);' ''
fault lost-version tracer/walk.c 0 'meta.offset -= etch__ops[n->op].kind == KIND_VIEW ? call->in[0]->offset : meta.offset;' \
    'meta.offset = 0;'

# ---- passes and kernels
fault merged-scalars jit/pass_cse.c 1 'if (g->nsc || (etch__ops[n->op].flags & OPF_RANDOM)) return false;' \
    '(void)g;'
fault shared-output jit/pass_cse.c 1 'return ok && copy_shared_outputs(r);' \
    '(void)copy_shared_outputs; return ok;'
fault reads-elsewhere jit/pass_writes.c 1 '!etch__same_map(r, &in[i], &n->target))' 'i < 0)'
fault shared-base jit/pass_writes.c 1 ' || (r->bases[base] & BASE_SHARED)' ''
fault dead-target jit/pass_dce.c 1 'if (n->write) need(r, needed, n->target.version);' ''
fault map-stride jit/pass_views.c 1 ' || a->stride[i] != b->stride[j]' ''
fault lifetime jit/memory.c 1 'a->first <= b->last && b->first <= a->last' \
    'a->first < b->last && b->first < a->last'
fault tail jit/helper/kernel.c 1 'quot(g, add(g, n, num(g, to - 1)), num(g, to))' \
    'quot(g, add(g, n, num(g, to - 2)), num(g, to))'
exit $missed
