/*
 * NSS softokn as a module that needs no more than C_Initialize as the standard has it.
 *
 * softokn wants the place of its database in pReserved, from which PKCS#11 keeps its hands off. This hands it over, out
 * of the environment, and is softokn in all else: the list of functions is its own but for the one.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long rv;

/* CK_C_INITIALIZE_ARGS, which softokn reads LibraryParameters from in front of pReserved. */
struct arguments {
    void *create, *destroy, *lock, *unlock;
    unsigned long flags;
    char *parameters;
    void *reserved;
};

/* CK_FUNCTION_LIST: a version, and 68 functions. */
struct list {
    unsigned char major, minor;
    rv (*functions[68])(void *);
};

static struct list functions;
static rv (*initialize)(void *);

static rv initialize_with_parameters(void *given) {
    struct arguments arguments;
    memset(&arguments, 0, sizeof arguments);
    if (given != NULL) {
        arguments.flags = ((struct arguments *)given)->flags;
    }
    arguments.parameters = getenv("NSS_PARAMETERS");
    return initialize(&arguments);
}

rv C_GetFunctionList(struct list **out) {
    void *module = dlopen(getenv("NSS_MODULE"), RTLD_NOW | RTLD_LOCAL);
    rv (*get)(struct list **) = module == NULL ? NULL : (rv(*)(struct list **))dlsym(module, "C_GetFunctionList");
    struct list *found;
    if (get == NULL || get(&found) != 0) {
        return 5; /* CKR_GENERAL_ERROR */
    }
    functions = *found;
    initialize = functions.functions[0];
    functions.functions[0] = initialize_with_parameters;
    *out = &functions;
    return 0;
}
