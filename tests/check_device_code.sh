#!/usr/bin/env bash
# Device code is C++: g++ reads each file of backends/cuda/device alone, behind the words of CUDA C
# that the fakes have, so that a mistake is found where it stands and not in a kernel at run time.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../backends/cuda/device"
prelude=../../../tests/fake_cuda/prelude.hpp
status=0
for file in *.cu *.cuh; do
    # Memory whose size the launch says has a declaration of its own in C++.
    { echo "#line 1 \"$file\"" && sed 's/extern __shared__/extern/' "$file"; } |
        g++ -std=c++17 -x c++ -fsyntax-only -Wall -Wno-unknown-pragmas -Werror -I. \
            -DFAKE_CUDA_ARCH=90 -include "$prelude" - || status=1
done
[ $status -eq 0 ] && echo "device code: ok"
exit $status
