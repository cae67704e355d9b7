/* The wall clock as an experiment has it: ahead by what stands in the file CHAOS_CLOCK, seconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *ahead;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("CHAOS_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *map = MAP_FAILED;

	if (file >= 0)
		map = mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, file, 0);
	if (map != MAP_FAILED)
		ahead = map;
	if (file >= 0)
		close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	int status = syscall(SYS_clock_gettime, clock, time);

	if (!status && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		time->tv_sec += *ahead;
	return status;
}
