/* NVML as mpitune.engine.usage asks it. A GPU is 40 % busy and has 1 GiB in use. DEVICES: names of GPUs and slices. */
#include <stddef.h>
#include <string.h>

static const char *const devices[] = {DEVICES};
enum { COUNT = sizeof devices / sizeof *devices, INVALID = 2, NOT_SUPPORTED, NOT_FOUND = 6 };

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID : 0; }
const char *nvmlErrorString(int error) { return "an error"; }

int nvmlDeviceGetHandleByUUID(const char *name, const char **device) {
    for (int n = 0; n < COUNT; n++)
        if (!strcmp(devices[n], name)) {
            *device = devices[n];
            return 0;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(const char *device, unsigned long long memory[3]) {
    memory[0] = 80ull << 30;
    memory[1] = 79ull << 30;
    memory[2] = 1ull << 30;
    return 0;
}

int nvmlDeviceGetUtilizationRates(const char *device, unsigned rates[2]) {
    rates[0] = 40;
    rates[1] = 7;
    return strncmp(device, "MIG-", 4) ? 0 : NOT_SUPPORTED;
}
