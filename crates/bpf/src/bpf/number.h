/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Arithmetic of the rules: integers of 64 bits that saturate instead of wrapping, and the bounds that keep products of two
 * of them in range. BPF has no 128-bit products, so a factor is capped before it enters a product; each cap is a value
 * that no connection reaches.
 */
#ifndef BUFWISE_NUMBER_H
#define BUFWISE_NUMBER_H

#include <linux/types.h>

/* Kernels before Linux 6.3 refuse a loop that is closed by running on into its head, as compilers lay some of them out. */
#ifdef __bpf__
#define BW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BW_UNROLL
#endif

#define BW_FN static inline __attribute__((always_inline, unused))

/* Payload of a full segment where the sample does not say. */
#define BW_MSS 1448
/* Longest time that enters a product: 134 s. */
#define BW_LONGEST (1ULL << 27)
/* Most bytes of one interval that enter a product: 64 GiB. */
#define BW_MOST_BYTES (1ULL << 36)
/* Largest rate that enters a product: 64 GiB/s, times BW_LONGEST below 2^64. */
#define BW_FASTEST (1ULL << 36)

BW_FN __u64 bw_min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

BW_FN __u64 bw_max(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* a - b, or 0. */
BW_FN __u64 bw_less(__u64 a, __u64 b)
{
	return a > b ? a - b : 0;
}

/* a * factor for a small constant factor, or all ones. */
BW_FN __u64 bw_times(__u64 a, __u64 factor)
{
	return a > ~0ULL / factor ? ~0ULL : a * factor;
}

BW_FN __u64 bw_mss(__u64 mss)
{
	return mss ? mss : BW_MSS;
}

/* Payload of a segment, within what enters a product. */
BW_FN __u64 bw_segment(__u64 mss)
{
	return bw_min(bw_mss(mss), 1 << 16);
}

/* Bytes per second of so many bytes in so many microseconds. */
BW_FN __u64 bw_rate(__u64 bytes, __u64 time)
{
	return bw_min(bw_min(bytes, BW_MOST_BYTES) * 1000000 / bw_max(time, 1), BW_FASTEST);
}

/* Bytes at that rate (bytes per second, at most BW_FASTEST) in so many microseconds. */
BW_FN __u64 bw_product(__u64 rate, __u64 time)
{
	return rate * bw_min(time, BW_LONGEST) / 1000000;
}

BW_FN __u64 bw_distance(__u64 a, __u64 b)
{
	return a > b ? a - b : b - a;
}

#endif
