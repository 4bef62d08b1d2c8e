/* The clock of devices, once a backend has one: see device_clock.h. */
#include "core/base/device_clock.h"

const device_clock *etch__device_clock;
