/*
 * Debian's libopendkim as a harness: benches/src/peer_protocol.rs says what it is told and what it answers.
 *
 * The library is used as the filter uses it: one DKIM_LIB for all messages, a handle for each; header fields one by
 * one, the body in the pieces that a milter gets; the private key as text, which the library parses for each message,
 * and the key record's text from a callback in the place of the DNS. The message is split here, at each go.
 */
#include <opendkim/dkim.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

/* How much of a body one milter command has. */
#define PIECE 65535

static DKIM_LIB *lib;

/* What was loaded last. */
static char algorithm[32], domain[256], selector[64];
static dkim_canon_t header_canon, body_canon;
static unsigned char *key, *record, *message;
static size_t message_size;
static const unsigned char *fields[64];
static char field_names[1024];

/* The field that was made last, and the verdict. */
static char made[16384];
static const char *verdict;

/* Why a command was not carried out. */
static char refusal[512];

enum outcome { DONE, ERROR, UNSUPPORTED };

static enum outcome refuse(enum outcome outcome, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(refusal, sizeof refusal, format, arguments);
	va_end(arguments);
	return outcome;
}

static enum outcome failed(DKIM *dkim, const char *step, DKIM_STAT status)
{
	const char *why = dkim == NULL ? NULL : dkim_geterror(dkim);
	enum outcome outcome = refuse(ERROR, "%s: %s (%s)", step, dkim_getresultstr(status), why == NULL ? "" : why);

	if (dkim != NULL)
		dkim_free(dkim);
	return outcome;
}

static DKIM_CBSTAT key_lookup(DKIM *dkim, DKIM_SIGINFO *signature, u_char *buffer, size_t size)
{
	(void) dkim;
	if (strcmp((char *) dkim_sig_getselector(signature), selector) != 0 ||
	    strcmp((char *) dkim_sig_getdomain(signature), domain) != 0)
		return DKIM_CBSTAT_NOTFOUND;
	if ((size_t) snprintf((char *) buffer, size, "%s", (char *) record) >= size)
		return DKIM_CBSTAT_ERROR;
	return DKIM_CBSTAT_CONTINUE;
}

/* Header fields, end of header, body; the step that failed, or NULL. */
static const char *feed(DKIM *dkim, DKIM_STAT *status)
{
	unsigned char *at = message, *end = message + message_size;

	while (at < end && !(end - at >= 2 && at[0] == '\r' && at[1] == '\n')) {
		unsigned char *next = at;

		do {
			next = memchr(next, '\n', end - next);
			next = next == NULL ? end : next + 1;
		} while (next < end && (*next == ' ' || *next == '\t'));
		*status = dkim_header(dkim, at, next - at - 2);
		if (*status != DKIM_STAT_OK)
			return "dkim_header";
		at = next;
	}
	*status = dkim_eoh(dkim);
	if (*status != DKIM_STAT_OK)
		return "dkim_eoh";
	for (at += 2; at < end; at += PIECE) {
		*status = dkim_body(dkim, at, end - at < PIECE ? end - at : PIECE);
		if (*status != DKIM_STAT_OK)
			return "dkim_body";
	}
	return NULL;
}

static enum outcome sign(void)
{
	DKIM_STAT status;
	dkim_alg_t alg = strcmp(algorithm, "rsa-sha256") == 0 ? DKIM_SIGN_RSASHA256 : DKIM_SIGN_ED25519SHA256;
	const char *step;
	u_char *value;
	size_t size;
	DKIM *dkim = dkim_sign(lib, (u_char *) "job", NULL, key, (u_char *) selector, (u_char *) domain,
	                       header_canon, body_canon, alg, -1, &status);

	if (dkim == NULL)
		return failed(dkim, "dkim_sign", status);
	if ((step = feed(dkim, &status)) != NULL)
		return failed(dkim, step, status);
	if ((status = dkim_eom(dkim, NULL)) != DKIM_STAT_OK)
		return failed(dkim, "dkim_eom", status);
	status = dkim_getsighdr_d(dkim, strlen(DKIM_SIGNHEADER) + 2, &value, &size);
	if (status != DKIM_STAT_OK)
		return failed(dkim, "dkim_getsighdr_d", status);
	snprintf(made, sizeof made, "%s: %s", DKIM_SIGNHEADER, (char *) value);
	dkim_free(dkim);
	return DONE;
}

static enum outcome verify(void)
{
	DKIM_STAT status;
	DKIM_SIGINFO *signature;
	const char *step;
	_Bool test_key;
	DKIM *dkim = dkim_verify(lib, (u_char *) "job", NULL, &status);

	if (dkim == NULL)
		return failed(dkim, "dkim_verify", status);
	if ((step = feed(dkim, &status)) != NULL)
		return failed(dkim, step, status);
	status = dkim_eom(dkim, &test_key);
	signature = dkim_getsignature(dkim);
	if (status == DKIM_STAT_OK && signature != NULL && DKIM_SIG_CHECK(signature))
		verdict = NULL;
	else if (status == DKIM_STAT_BADSIG && signature != NULL)
		verdict = dkim_sig_getbh(signature) == DKIM_SIGBH_MISMATCH
			? "body hash" : dkim_sig_geterrorstr(dkim_sig_geterror(signature));
	else
		return failed(dkim, "dkim_eom", status);
	dkim_free(dkim);
	return DONE;
}

static enum outcome verify_to_pass(void)
{
	enum outcome outcome = verify();

	return outcome == DONE && verdict != NULL ? refuse(ERROR, "did not pass: %s", verdict) : outcome;
}

static unsigned long long cpu_time(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static enum outcome timed(enum outcome (*go)(void), long goes, unsigned long long *taken)
{
	unsigned long long start = cpu_time();

	if (goes < 1)
		return refuse(ERROR, "not a number of goes");
	while (goes-- > 0) {
		enum outcome outcome = go();

		if (outcome != DONE)
			return outcome;
	}
	*taken = cpu_time() - start;
	return DONE;
}

/* So many octets of standard input, and a NUL. */
static unsigned char *octets(unsigned char *before, size_t size)
{
	unsigned char *octets = realloc(before, size + 1);

	if (octets == NULL || fread(octets, 1, size, stdin) != size) {
		fprintf(stderr, "opendkim: load: input ends early\n");
		exit(1);
	}
	octets[size] = '\0';
	return octets;
}

static int canon(const char *name, dkim_canon_t *canon)
{
	*canon = strcmp(name, "relaxed") == 0 ? DKIM_CANON_RELAXED : DKIM_CANON_SIMPLE;
	return *canon == DKIM_CANON_RELAXED || strcmp(name, "simple") == 0;
}

static enum outcome load(const char *line)
{
	char header[16], body[16];
	size_t key_size, record_size, count = 0;
	char *name;

	if (sscanf(line, "load %31s %255s %63s %15[a-z]/%15[a-z] %1023s %zu %zu %zu", algorithm, domain, selector,
	           header, body, field_names, &key_size, &record_size, &message_size) != 9) {
		fprintf(stderr, "opendkim: load: words are missing or wrong\n");
		exit(1);
	}
	key = octets(key, key_size);
	record = octets(record, record_size);
	message = octets(message, message_size);
	if (!canon(header, &header_canon) || !canon(body, &body_canon))
		return refuse(UNSUPPORTED, "c=%s/%s", header, body);
	if (strcmp(algorithm, "rsa-sha256") != 0 && strcmp(algorithm, "ed25519-sha256") != 0)
		return refuse(UNSUPPORTED, "no such algorithm: %s", algorithm);
	for (name = strtok(field_names, ":"); name != NULL && count < 63; name = strtok(NULL, ":"))
		fields[count++] = (unsigned char *) name;
	fields[count] = NULL;
	if (dkim_options(lib, DKIM_OP_SETOPT, DKIM_OPTS_SIGNHDRS, fields, sizeof(unsigned char **)) != DKIM_STAT_OK)
		return refuse(ERROR, "dkim_options: the names of the fields were not taken");
	return DONE;
}

int main(void)
{
	char line[4096];
	unsigned version = dkim_libversion();

	lib = dkim_init(NULL, NULL);
	if (lib == NULL || dkim_set_key_lookup(lib, key_lookup) != DKIM_STAT_OK) {
		fprintf(stderr, "opendkim: the library does not start\n");
		return 1;
	}
	printf("ready libopendkim %u.%u.%u, %s\n", version >> 24, version >> 16 & 255, version >> 8 & 255,
	       "keys parsed per message");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) != NULL) {
		enum outcome outcome;
		unsigned long long taken = 0;
		long goes;

		if (strncmp(line, "load ", 5) == 0) {
			outcome = load(line);
			if (outcome == DONE)
				printf("loaded\n");
		} else if (message == NULL) {
			outcome = refuse(ERROR, "nothing is loaded");
		} else if (sscanf(line, "sign %ld", &goes) == 1) {
			outcome = timed(sign, goes, &taken);
			if (outcome == DONE)
				printf("signed %llu\n", taken);
		} else if (sscanf(line, "verify %ld", &goes) == 1) {
			outcome = timed(verify_to_pass, goes, &taken);
			if (outcome == DONE)
				printf("verified %llu\n", taken);
		} else if (strcmp(line, "signature\n") == 0) {
			printf("signature %zu\n%s", strlen(made), made);
			outcome = DONE;
		} else if (strcmp(line, "verdict\n") == 0) {
			outcome = verify();
			if (outcome == DONE)
				printf(verdict == NULL ? "pass\n" : "fail %s\n", verdict);
		} else {
			line[strcspn(line, "\n")] = '\0';
			outcome = refuse(UNSUPPORTED, "no such command: %s", line);
		}
		if (outcome != DONE)
			printf("%s %s\n", outcome == ERROR ? "error" : "unsupported", refusal);
		fflush(stdout);
	}
	dkim_close(lib);
	return 0;
}
