/* NVML as mpitune.devices.gpu_watch and mpitune.engine.usage ask it. A GPU is 40 % busy and has 1 GiB in use. DEVICES: {name, number of the GPU that it is, or is a slice of}.
   What happens is told by files in the folder $NVML: while "hang" is there nothing that is asked of a GPU returns; with
   "lost" they are lost. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device { const char *name; int gpu; };
static struct device devices[] = {DEVICES};
enum { COUNT = sizeof devices / sizeof *devices, INVALID = 2, NOT_SUPPORTED, NOT_FOUND = 6, LOST = 15 };

static const char *path(const char *name) {
    static char text[4096];
    snprintf(text, sizeof text, "%s/%s", getenv("NVML"), name);
    return text;
}

static int is_slice(const struct device *device) { return !strncmp(device->name, "MIG-", 4); }

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID : 0; }
const char *nvmlErrorString(int error) { return "an error"; }

int nvmlDeviceGetHandleByIndex_v2(unsigned number, struct device **device) {
    for (int n = 0; n < COUNT; n++)
        if (!is_slice(&devices[n]) && devices[n].gpu == (int)number) {
            *device = &devices[n];
            return 0;
        }
    return INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *name, struct device **device) {
    for (int n = 0; n < COUNT; n++)
        if (!strcmp(devices[n].name, name)) {
            *device = &devices[n];
            return 0;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long memory[3]) {
    while (!access(path("hang"), F_OK))
        usleep(10000);
    memory[0] = 80ull << 30;
    memory[1] = 79ull << 30;
    memory[2] = 1ull << 30;
    return access(path("lost"), F_OK) ? 0 : LOST;
}

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned rates[2]) {
    rates[0] = 40;
    rates[1] = 7;
    return is_slice(device) ? NOT_SUPPORTED : 0;
}
