/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Arithmetic of the rules: saturating 64-bit integers, and the bounds that keep products in range. BPF has no 128-bit
 * products, so each factor is capped before it enters a product; no connection reaches these caps.
 */
#ifndef BUFWISE_NUMBER_H
#define BUFWISE_NUMBER_H

#include <linux/types.h>

/*
 * Unrolls a loop in BPF. Kernels before Linux 6.3 reject a loop whose back edge falls through into its head, which is
 * how compilers arrange some loops.
 */
#ifdef __bpf__
#define BW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BW_UNROLL
#endif

#define BW_FN static inline __attribute__((always_inline, unused))

/* Payload of a full segment where the sample has none (bytes). */
#define BW_MSS 1448
/* A sender's initial window (RFC 6928, segments). */
#define BW_INITIAL_WINDOW 10
/* Longest time that enters a product (us): 134 s. */
#define BW_LONGEST (1ULL << 27)
/* Most bytes that enter a product: 64 GiB; times 10^6 they stay below 2^56. */
#define BW_MOST_BYTES (1ULL << 36)
/* Largest rate that enters a product (bytes/s): 64 GiB/s; times BW_LONGEST it stays below 2^64. */
#define BW_FASTEST (1ULL << 36)

BW_FN __u64 bw_min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

BW_FN __u64 bw_max(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* Returns a - b; 0 if b is larger. */
BW_FN __u64 bw_less(__u64 a, __u64 b)
{
	return a > b ? a - b : 0;
}

/* Returns a * factor for a small constant factor; all ones if the product is too large. */
BW_FN __u64 bw_times(__u64 a, __u64 factor)
{
	return a > ~0ULL / factor ? ~0ULL : a * factor;
}

/* Returns the payload of a full segment; 0: BW_MSS. */
BW_FN __u64 bw_mss(__u64 mss)
{
	return mss ? mss : BW_MSS;
}

/* Returns the payload of a full segment, at most 64 KiB, so that it can enter a product. */
BW_FN __u64 bw_segment(__u64 mss)
{
	return bw_min(bw_mss(mss), 1 << 16);
}

/* Returns the rate (bytes per second, at most BW_FASTEST) of `bytes` in `time` us. */
BW_FN __u64 bw_rate(__u64 bytes, __u64 time)
{
	return bw_min(bw_min(bytes, BW_MOST_BYTES) * 1000000 / bw_max(time, 1), BW_FASTEST);
}

/* Bytes at `rate` (bytes/s, at most BW_FASTEST) in `time` us, which is capped at BW_LONGEST. */
BW_FN __u64 bw_product(__u64 rate, __u64 time)
{
	return rate * bw_min(time, BW_LONGEST) / 1000000;
}

/* Returns |a - b|. */
BW_FN __u64 bw_distance(__u64 a, __u64 b)
{
	return a > b ? a - b : b - a;
}

#endif
