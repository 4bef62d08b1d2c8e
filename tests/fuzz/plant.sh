#!/usr/bin/env bash
# Plants faults in a copy of the sources, one at a time, and prints a table of how long the fuzzer
# takes to find each, and with what: tests/fuzz/plant.sh [NAME...]. Exit status 1: one was not found
# within two minutes of processor time, or, where no NAME is given, something was without a fault.
# --check: only whether the texts to be replaced are there.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
copy=build-plant
check=
if [ "${1:-}" = --check ]; then check=1; shift; fi
names=("$@")
found=0 missed=0

# replace FILE FROM TO, in the copy: once. False if the text is not there.
replace() {
    mkdir -p "$copy/clean/$(dirname "$1")"
    [ -f "$copy/clean/$1" ] || cp "$copy/$1" "$copy/clean/$1"
    cp "$copy/$1" "$copy/before"
    from=$2 to=$3 perl -0pi -e '$f = $ENV{from}; s/\Q$f\E/$ENV{to}/' "$copy/$1"
    ! cmp -s "$copy/before" "$copy/$1"
}

line() {
    printf '| %-16s | %-21s | %7s | %s\n' "$1" "$2" "$3" "$4"
}

# Runs the fuzzer of the copy for at most two minutes of processor time (other work on the machine is
# not to count); every K-th program runs generated code. K = cuda: on the fake GPU, which takes graph
# nodes in another order than they were added. K = gradients: all programs have gradients, none runs
# generated code.
hunt() {
    local name=$1 file=$2 where=(--native "$3")
    [ "$3" != cuda ] || where=(--native 2 --device cuda)
    [ "$3" != gradients ] || where=(--native 0 --gradients 1)
    if timeout 900 "$copy/build/tests/etch_fuzz" --processor 120 --seed 1 "${where[@]}" \
        --failures 1 --reduce 0 >"$copy/out" 2>&1 || ! grep -q '^== seed' "$copy/out"; then
        line "$name" "$file" - 'NOT FOUND'
        missed=$((missed + 1))
    else
        line "$name" "$file" "$(sed -n 's/^fuzz: .* \([0-9]*\) s of processor.*/\1/p' "$copy/out") s" \
            "$(grep -m1 '^== seed' "$copy/out" || tail -1 "$copy/out")"
        found=$((found + 1))
    fi
}

# has_texts NAME FILE FROM TO [FILE FROM TO]...
has_texts() {
    local name=$1
    for (( ; $# > 3; )); do
        shift
        if [[ $(<"$1") == *"$2"* ]]; then
            found=$((found + 1))
        else
            echo "$name: $1 has no such text: $2"
            missed=$((missed + 1))
        fi
        shift 2
    done
}

# fault NAME K FILE FROM TO [FILE FROM TO]...: each FROM is replaced once by TO. K: as hunt's; 0: no
# generated code. Needs g++ where K is cuda.
fault() {
    local name=$1 native=$2 first=$3 files=()
    shift 2
    if [ "$check" ]; then
        has_texts "$name" "$@"
        return
    fi
    [ ${#names[@]} -eq 0 ] || [[ " ${names[*]} " == *" $name "* ]] || return 0
    while [ $# -gt 0 ]; do
        files+=("$1")
        if ! replace "$1" "$2" "$3"; then
            line "$name" "$1" - 'not planted: no such text'
            missed=$((missed + 1))
            first=
        fi
        shift 3
    done
    if [ -n "$first" ]; then
        if cmake --build "$copy/build" --target etch_fuzz etch-jit >"$copy/log" 2>&1; then
            hunt "$name" "$first" "$native"
        else
            line "$name" "$first" - "does not build, see $copy/log"
            missed=$((missed + 1))
        fi
    fi
    for first in "${files[@]}"; do cp "$copy/clean/$first" "$copy/$first"; done
}

prepare() {
    local launcher=() fakes
    mkdir -p "$copy"
    rm -rf "$copy/clean"
    # With new times, so that nothing is left of a fault whose hunt was interrupted.
    tar -c --exclude='./build*' --exclude=./.git . | tar -x -m -C "$copy"
    if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
    [ -f "$copy/build/build.ninja" ] || cmake -S "$copy" -B "$copy/build" -G Ninja "${launcher[@]}" \
        -DCMAKE_BUILD_TYPE=Release -DETCH_EXAMPLES=OFF -DETCH_BENCH=OFF >"$copy/log" 2>&1
    cmake --build "$copy/build" --target etch_fuzz etch-jit fake_cuda fake_nvrtc fake_cublaslt \
        >"$copy/log" 2>&1
    fakes=$PWD/$copy/build/tests/fake_cuda
    export ETCH_CUDA_DRIVER=$fakes/libfake_cuda.so ETCH_CUDA_NVRTC=$fakes/libfake_nvrtc.so
    export ETCH_CUDA_CUBLASLT=$fakes/libfake_cublaslt.so FAKE_CUDA_CACHE=$fakes/kernels FAKE_CUDA_LAZY=1
    mkdir -p "$FAKE_CUDA_CACHE"
    line fault file after found
    line ---- ---- --: ----
}

# Without a fault nothing may be found. control SECONDS ARGUMENT...
control() {
    local seconds=$1
    shift
    "$copy/build/tests/etch_fuzz" --processor "$seconds" --seed 1 --reduce 0 "$@" >"$copy/out" 2>&1 &&
        return
    line control - - "$(grep -m1 '^== seed' "$copy/out" || tail -1 "$copy/out")"
    missed=1
}

[ "$check" ] || prepare
if [ ! "$check" ] && [ ${#names[@]} -eq 0 ]; then
    control 60 --native 1
    control 120 --native 2 --device cuda # g++ is slow: this one fills the cache of the fake's kernels
fi

# ---- matching
fault guard-stride 0 guards/guard.h ' || g->stride[d] != t->stride[d]' ''
fault guard-size 0 guards/guard.h 'g->size[d] != t->size[d] || ' ''
fault guard-dtype 0 guards/guard.h 'if (g->dtype != t->dtype || g->ndim' 'if (g->ndim'
fault guard-dynamic 0 guards/guard.h 'return g->dtype == t->dtype && ' 'return '
fault state-word 0 core/dispatch/cursor.h 'n->state != etch__state_now() || ' ''
fault scalar-kind 0 core/dispatch/cursor.h 'if (unlikely(n->kind[i] != sc[i].kind)) return NULL;' ';'
fault static-attribute 0 core/dispatch/cursor.h 'if (unlikely(n->at[i] != at[i])) return NULL;' \
    'if (n->at[i] != at[i] && i < 0) return NULL;'
fault operand 0 core/dispatch/cursor.h \
    'if (unlikely(c->value[n->in[i]] != in[i] || !in[i])) return NULL;' 'if (!in[i]) return NULL;'
fault baked-scalar 0 core/dispatch/cursor.h \
    'for (int i = 0; i < nsc; i++) c->scalar[n->sc + i] = sc[i];' ''

# ---- what ends a segment
fault pair-check 0 tracer/run/code.c \
    'while (code && !etch__alias_fits(leaf, code, w->seen.alias)) code = code->next;' ''
fault alias-class 0 guards/alias.c 'alias[inputs[i]] = table[at];' ';'
fault overlap 0 guards/alias.c \
    '(written[u] || written[v]) && etch__memory_overlaps(s, other)' 'u < 0'
fault instance-size 0 tracer/trace/leaf.c '!memcmp(code->key, seen->key, bytes)' '(bytes, code->key)'
fault late-use 0 tracer/run/foreign.c '(all || depends_on(w, s))' '(all)'
fault spoilt 0 tracer/run/evaluate.c ' && !etch__is_spoilt(w->room.inputs[i])' ''
fault flush 0 tracer/run/foreign.c 'if (why == REASON_BREAK_FLUSH && !t) produce_all(site);' ''
fault tainted 0 tracer/trace/leaf.c \
    'if (n->in[k] >= 0) tainted[n->c.out] |= tainted[n->in[k]];' ';'
fault escape 0 tracer/run/segment.c 'if (all || h == t' 'if (h == t'
fault exposed 0 tracer/run/exposed.c 'bits & EXPOSED_WRITERS || (bits && writes && i == 0)' 'i < 0'
fault view-offset 0 tracer/run/code.c ' + (slot == OUT_INPUT ? base->offset : 0)' ''
fault leaked-capture 0 tracer/run/walk.c 'etch_release(w->c.value[leaf->bound[i]]);' ''
fault lost-version 0 tracer/run/match.c \
    'meta.offset -= etch__ops[n->op].kind == KIND_VIEW ? call->in[0]->offset : meta.offset;' \
    'meta.offset = 0;'
fault eager-offset 0 backends/eager.c \
    't->offset += r->value[of]->offset - g->values[of].meta.offset;' ''

# ---- what is written past the run
fault outer-run 0 tracer/run/foreign.c '    for (trace_run *r = etch__tls.runs; r; r = r->below)
        for (trace_walk *w = r->pending; w; w = w->next)' '    for (trace_run *r = etch__tls.runs; r; r = NULL)
        for (trace_walk *w = r->pending; w; w = w->next)'
fault effects-write 0 core/dispatch/custom.c \
    'if (etch__ops[call->op].flags & OPF_EFFECTS) etch__before_write(NULL);' ''
fault free-function 0 core/tensor/storage.c 'etch__interrupt(&frame);' 'frame = etch__push_user_frame();' \
    core/tensor/storage.c 'etch__end_interrupt(&frame);' 'etch__pop_frame(&frame);'
fault free-read 0 tracer/run/foreign.c 'etch__trace_hooks.before_read = before_traced_read;' ''
fault exposure-bit 0 tracer/run/exposed.c 'atomic_fetch_sub(&ended.storage->exposed, ended.counts);' \
    'atomic_fetch_and(&ended.storage->exposed, EXPOSED_WRAPPED | EXPOSED_PENDING);'
fault kept-operand 0 core/dispatch/custom.c 'etch__lend(call, out, call_lent, &u)' \
    '(0 ? etch__lend(call, out, call_lent, &u) : call_lent(&u, call, out))'

# ---- what fails
fault failed-handle 0 tracer/run/evaluate.c 'if (h->storage) spoil(w->run, h->storage);' \
    'if (h->owner == w) fail_handle(h);'
fault lost-write 0 tracer/run/evaluate.c 'if (n->c.inplace) etch__tls.lost = etch__tls.errors;' ''
fault flush-says-ok 0 tracer/run/foreign.c \
    'return etch__succeeded(&a) || t ? ETCH_OK : etch__tls.status;' \
    'return etch__succeeded(&a) || !t ? ETCH_OK : etch__tls.status;'

fault lost-segment 0 tracer/run/segment.c 'r->poisoned |= writes(w);' '(void)r, (void)writes;'
fault blamed-reader 0 tracer/run/evaluate.c 'if (n->c.inplace) etch__tls.lost = etch__tls.errors;
    etch__error_of_before();' 'if (n->c.inplace) etch__tls.lost = etch__tls.errors;'
fault failed-operand 0 tracer/run/operator.c \
    'return operands_there(call) ? operator_of_run(call) : NULL;' \
    'return operator_of_run(call);'

# ---- replays
fault replay-guard 0 tracer/run/replay.c \
    'if (!etch__guard_holds(&p->guards[i], io->in[i])) return false;' ';'
fault replay-state 0 tracer/run/replay.c ' || p->state != etch__state_now()' ''
fault replay-same 0 tracer/run/replay.c 'if (first_same(in, i) != p->same[i]) return false;' ';'
fault replay-random 0 tracer/run/replay.c 'etch__random_reserve(p->random[i].numel, &seed, &offset);' \
    'etch__random_reserve(1, &seed, &offset);'

# ---- how the processor computes
fault mode-of-state 0 core/base/thread.h \
    'return etch__tls.state | (uint64_t)(etch__fp_now() & FP_MODE) << 32;' 'return etch__tls.state;'
fault mode-in-segment 0 tracer/run/operator.c \
    'return !empty && STATE_FP(last->state ^ etch__state_now());' \
    'return !empty && STATE_FP(last->state ^ last->state);'
fault mode-of-plan 0 tracer/run/code.c 'etch__frame_mode(&frame, leaf->path[0]->c.state);' ';'
fault mode-of-node 0 core/base/thread.h 'etch__fp_control(STATE_FP(word) | FP_TRAPS);' \
    '(void)etch__fp_mask();'
fault mode-left 0 core/base/frame.c 'if (unlikely(f->fp_changed)) etch__fp_control(f->fp);' ''
fault traps-left 0 core/base/thread.h 'if (unlikely(~before & FP_TRAPS))
        etch__fp_set(' 'if (before & ~before)
        etch__fp_set('
fault traps-inside 0 tracer/run/call.c 'etch__fp_control(frame.fp);' ''
fault traps-in-plan 0 core/base/frame.c 'etch__fp_mask(), NULL};' 'etch__fp_now(), NULL};'
fault traps-in-kernel 0 core/dispatch/dispatch.c 'unsigned traps = etch__fp_mask();
    etch_status' 'unsigned traps = etch__fp_now();
    etch_status'
fault traps-in-parts 0 core/dispatch/dispatch.c 'unsigned traps = etch__fp_mask(); /* what' \
    'unsigned traps = etch__fp_now(); /* what'

# ---- gradients: what is the same wrong in eager code is found by tests of derivatives, not here
fault version-run gradients core/autograd/tape.c \
    'if (unlikely(t->deferred || etch__tls.run)) return etch__trace_hooks.version(t);' \
    'if (unlikely(t->deferred || etch__tls.run)) return 0;'
fault version-segment gradients tracer/run/exposed.c \
    'version += deferred_writes(r->walk, root);' '(void)deferred_writes;'
fault version-ended gradients tracer/run/exposed.c \
    'version += deferred_writes(root->owner, root);' 'version += 0;'
fault version-twice gradients backends/eager.c 'r->wrote |= g->values[n->out].base < g->ninputs;' \
    'r->wrote |= g->values[n->out].base < g->ninputs;
    atomic_fetch_add(&r->value[n->out]->storage->version, 1);'
fault deferred-place gradients core/autograd/tape.c \
    'p->deferred ? etch__trace_hooks.offset(p) : p->offset' 'p->offset'
fault unnoted-match gradients core/dispatch/call.h ' && likely(!etch__is_layered(op, in, nin))' ''
fault moved-gradient gradients core/autograd/engine.c \
    'anew ? etch_add(have, g) : etch_add_(have, g)' \
    'anew ? etch_add(have, g) : etch_add(have, g)'
fault shared-gradient gradients core/autograd/engine.c \
    'return own && !g->view && g->contiguous ? g : etch_clone(g);' '(void)own; return g;'
fault no-grad-left gradients core/autograd/engine.c 'bool ok = run(&e);
    etch__tls.state =' 'bool ok = run(&e);
    if (ok) etch__tls.state ='
fault never-freed gradients core/autograd/tape.c 'n->freed = n->kind != NODE_LEAF;' 'n->freed = false;'
fault address-order gradients core/autograd/engine.c \
    'if (a->node->number != b->node->number) return a->node->number > b->node->number;' \
    'if (a->node != b->node) return a->node > b->node;'
fault origin-count gradients tracer/run/backward.c 'if (o) atomic_fetch_add(&o->refs, 1);' ''
fault stale-request gradients tracer/run/backward.c 'job = &own;' \
    'static __thread backward_job first;
    if (!first.run) first = own;
    job = &first;'

# ---- passes
fault merged-scalars 1 jit/ir/pass_cse.c \
    'if (g->nsc || (etch__ops[n->op].flags & OPF_RANDOM)) return false;' \
    'if (g && etch__ops[n->op].flags & OPF_RANDOM) return false;'
fault merged-random 1 jit/ir/pass_cse.c \
    'if (g->nsc || (etch__ops[n->op].flags & OPF_RANDOM)) return false;' \
    'if (g->nsc && !(etch__ops[n->op].flags & OPF_RANDOM)) return false;'
fault shared-output 1 jit/ir/pass_cse.c 'return copy_shared_outputs(r);' \
    '(void)copy_shared_outputs; return true;'
fault reads-elsewhere 1 jit/ir/pass_writes.c '!etch__same_map(r, &in[i], &n->target))' 'i < 0)'
fault shared-base 1 jit/ir/pass_writes.c ' || (r->bases[base] & BASE_SHARED)' ''
fault dead-target 1 jit/ir/pass_dce.c 'if (n->write) need(r, needed, n->target.version);' ''
fault map-stride 1 jit/ir/pass_views.c ' || a->stride[i] != b->stride[j]' ''
fault map-broadcast 1 jit/ir/pass_views.c 'e < 0 || s->meta.size[e] == 1 ? 0' 'e < 0 ? 0'
fault merged-turned 1 jit/fuse/fuse_merge.c 'if (!etch__fusable(r, n, &sp, s)) return false;' \
    'if (!etch__fusable(r, n, &sp, s) && k < 0) return false;'
fault dropped-check 1 jit/plan/plan_run.c 'if (likely(status == ETCH_OK)) continue;' \
    'if (likely(status == ETCH_OK) || (etch_clear_error(), i >= 0)) continue;'
fault lifetime 1 jit/plan/memory.c 'a->first <= b->last && b->first <= a->last' \
    'a->first < b->last && b->first < a->last'

# ---- kernels
fault load-offset 1 jit/plan/lower.c 't->meta.offset == s->meta.offset &&' ''
fault shared-cell 1 jit/plan/lower.c 'l->out->cell[i].scalar == scalar && ' ''
fault merged-axes 1 jit/plan/lower.c \
    'if (l->stride[k][i] != l->stride[k][i + 1] * l->extent[i + 1]) return false;' \
    'if (l->stride[k][i] < l->stride[k][i + 1] * l->extent[i + 1]) return false;'
fault lost-rounding 1 jit/plan/lower.c \
    'if (dtype == ETCH_BF16) v = emit_prim(l, stage, PRIM_ROUND_BF16, ETCH_F32, ETCH_F32, v, 0);' ''
fault tail 1 jit/helper/kernel.c 'quot(g, add(g, n, num(g, to - 1)), num(g, to))' \
    'quot(g, add(g, n, num(g, to - 2)), num(g, to))'
fault reduced-tail 1 jit/helper/reduce.c 'sub(g, rv(g->n), whole));' \
    'add(g, sub(g, rv(g->n), whole), num(g, 1)));'
fault reduction-order 1 jit/helper/reduce.c \
    'combine(g, r, r->lanes, rv(l.i), r->lanes, add(g, rv(l.i), num(g, w)));' \
    'combine(g, r, r->lanes, rv(l.i), r->lanes, sub(g, num(g, 2 * w - 1), rv(l.i)));'
fault kernel-key 1 core/base/lru.c 'memcmp(e->key, key, n) == 0' \
    '(n > 16 && !memcmp((const char *)e->key + 16, (const char *)key + 16, n - 16))' \
    jit/store/kernels.c 'XXH3_64bits(w->bytes, w->n)' 'XXH3_64bits(w->bytes + 16, w->n - 16)'
fault cache-key 1 jit/store/cache.c '32s isa %s"' '32s isa %.0s"'

# ---- tensors on a device
fault stale-patch cuda backends/cuda/graph.c 'changed += now[i] != s->parameter[i];' \
    'changed += now[i] == 0 && s->parameter[i];'
fault stale-call cuda jit/plan/plan_issue.c 'changed |= words[k] != at;' ';'
fault lost-edge cuda jit/plan/plan_waits.c 'p->after[n++] = s;' '(void)s;'
fault plan-stride cuda backends/cuda/ops.c \
    'key[n++] = t->size[d], key[n++] = t->stride[d];' 'key[n++] = t->size[d];'
fault index-wrap cuda backends/cuda/device/index_walk.cu 'if (k < 0) k += a.n;' ''
fault device-product cuda jit/cuda/cuda_prims.c '.prim = etch__reduction(kind)->prim,' \
    '.prim = kind == REDUCE_PROD ? PRIM_ADD : etch__reduction(kind)->prim,'

echo
echo "plant: $found found, $missed not"
[ "$missed" -eq 0 ]
