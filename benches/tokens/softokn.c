/* NSS softokn as a PKCS#11 module like any other, for measuring: it starts only if C_Initialize gets the place of its
 * database in pReserved, which programs that are not made for it leave empty. Here it is taken from NSS_LIB_PARAMS, as newer
 * versions of it do themselves. All other calls go straight to it.
 *
 *     cc -shared -fPIC -DMODULE='"/usr/lib/x86_64-linux-gnu/libsoftokn3.so"' -o softokn.so softokn.c
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

/* As in PKCS#11 2.40; nothing of it is needed but its first function. */
struct functions {
    unsigned char version[2];
    unsigned long (*initialize)(void *);
    void *others[67];
};

struct initialize_arguments {
    void *mutex_functions[4];
    unsigned long flags;
    void *reserved;
};

enum { OK = 0, GENERAL_ERROR = 5 };

static struct functions *real;
static struct functions ours;

static unsigned long initialize(void *given)
{
    struct initialize_arguments arguments = { .flags = 2 /* CKF_OS_LOCKING_OK */ };
    if (given)
        arguments = *(struct initialize_arguments *)given;
    arguments.reserved = getenv("NSS_LIB_PARAMS");
    return real->initialize(&arguments);
}

unsigned long C_GetFunctionList(struct functions **list)
{
    void *module = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL);
    unsigned long (*get)(struct functions **) = NULL;
    if (module)
        *(void **)&get = dlsym(module, "C_GetFunctionList");
    if (!get || get(&real) != OK)
        return GENERAL_ERROR;
    ours = *real;
    ours.initialize = initialize;
    *list = &ours;
    return OK;
}
