/* Etch: eager tensor code in C, compiled by etch_compile to fused machine code with the same
 * bits. */
#ifndef ETCH_ETCH_H
#define ETCH_ETCH_H

#include <etch/base.h>
#include <etch/tensor.h>
#include <etch/ops.h> /* generated from core/ops/ops.def */
#include <etch/compile.h>
#include <etch/debug.h>
#include <etch/device.h>
#include <etch/grad.h>
#include <etch/mode.h>
#include <etch/backend.h>
#include <etch/explain.h>
#include <etch/modes.h>
#include <etch/profile.h>
#include <etch/opcheck.h>
#include <etch/safetensors.h>
#include <etch/nn.h>
#include <etch/optim.h>
#include <etch/export.h>
#include <etch/transforms.h>

#endif
