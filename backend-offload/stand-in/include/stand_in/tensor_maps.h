// Tensor maps: boxes of a tensor in global memory, copied to and from shared memory.
#pragma once
#include <stand_in/language.h>

// 128 opaque bytes for a program; written by src/exports/tensor_maps.rs.
#define STAND_IN_MAP 0x70616d5f726f736eull
struct stand_in_map {
    stand_in_word magic, address;
    unsigned char im2col, element, rank, swizzle, nan, tf32, unused[2];
    unsigned size[5], unused_too;
    stand_in_word stride[4]; // bytes; of the second dimension first
    unsigned short box[5];
    unsigned char step[5], also_unused;
    unsigned short channels, pixels; // of one im2col column
    short lower[3], upper[3];
};
static_assert(sizeof(stand_in_map) <= 128, "a tensor map has 128 bytes");

// Units of 16 bytes change places within 32, 64 or 128 bytes, by bits of the address above them.
static inline size_t stand_in_swizzle(size_t address, unsigned mode) {
    return address ^ ((address >> 7 & ((1u << mode) - 1)) << 4);
}
static inline unsigned stand_in_box_count(const stand_in_map &map, unsigned i) {
    return i < map.rank ? (map.box[i] + map.step[i] - 1u) / map.step[i] : 1;
}
static inline unsigned stand_in_box_bytes(const stand_in_map &map) {
    if (map.im2col) return (unsigned)map.channels * map.pixels * map.element;
    unsigned bytes = map.element;
    for (unsigned i = 0; i < map.rank; i++) bytes *= stand_in_box_count(map, i);
    return bytes;
}
static inline void stand_in_fill_element(const stand_in_map &map, void *to) {
    __builtin_memset(to, map.nan ? 0xff : 0, map.element);
}
static inline void stand_in_load_element(const stand_in_map &map, void *to, const void *from) {
    if (map.tf32) {
        unsigned bits;
        __builtin_memcpy(&bits, from, 4);
        bool number = (bits & 0x7fffffff) <= 0x7f800000;
        bits = number ? (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu : 0x7fffffff;
        __builtin_memcpy(to, &bits, 4);
    } else {
        __builtin_memcpy(to, from, map.element);
    }
}

// One row of elements; `from` is null outside the tensor. `place` counts bytes in the box.
static inline void stand_in_row(const stand_in_map &map, size_t shared, size_t place, char *row, long first, bool load) {
    unsigned count = stand_in_box_count(map, 0), element = map.element;
    bool whole = row && first >= 0 && first + (long)map.box[0] <= (long)map.size[0] && map.step[0] == 1 && !map.tf32;
    if (whole && count * element % 16 == 0) {
        for (unsigned unit = 0; unit < count * element; unit += 16) {
            void *here = (void *)stand_in_swizzle(shared + place + unit, map.swizzle);
            char *there = row + first * element + unit;
            load ? __builtin_memcpy(here, there, 16) : __builtin_memcpy(there, here, 16);
        }
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        void *here = (void *)stand_in_swizzle(shared + place + i * element, map.swizzle);
        long x = first + (long)i * map.step[0];
        bool inside = row && x >= 0 && x < (long)map.size[0];
        if (!load) {
            if (inside) __builtin_memcpy(row + x * element, here, element);
        } else if (inside) {
            stand_in_load_element(map, here, row + x * element);
        } else {
            stand_in_fill_element(map, here);
        }
    }
}

// A box with its corner at `at`; elements outside the tensor are zero or NaN, and are not stored.
static inline void stand_in_tile(const stand_in_map &map, void *shared, const int *at, bool load) {
    unsigned count[5];
    for (unsigned i = 0; i < 5; i++) count[i] = stand_in_box_count(map, i);
    size_t place = 0;
    for (unsigned row = 0; row < count[1] * count[2] * count[3] * count[4]; row++) {
        unsigned rest = row;
        char *start = (char *)map.address;
        for (unsigned i = 1; i < map.rank; i++) {
            long x = at[i] + (long)(rest % count[i]) * map.step[i];
            rest /= count[i];
            if (x < 0 || x >= (long)map.size[i]) start = nullptr;
            if (start) start += x * map.stride[i - 1];
        }
        stand_in_row(map, (size_t)shared, place, start, at[0], load);
        place += (size_t)count[0] * map.element;
    }
}

// A column of pixels: positions advance within the bounding box, `offsets` are the filter's.
static inline void stand_in_pixels(const stand_in_map &map, void *shared, const int *at, const unsigned short *offsets) {
    unsigned spatial = map.rank - 2;
    long x[4], image = at[map.rank - 1];
    for (unsigned i = 0; i < spatial; i++) x[i] = at[1 + i];
    for (unsigned pixel = 0; pixel < map.pixels; pixel++) {
        char *start = image >= 0 && image < (long)map.size[map.rank - 1]
            ? (char *)map.address + image * map.stride[map.rank - 2] : nullptr;
        for (unsigned i = 0; i < spatial; i++) {
            long y = x[i] + offsets[i];
            if (y < 0 || y >= (long)map.size[1 + i]) start = nullptr;
            if (start) start += y * map.stride[i];
        }
        for (unsigned c = 0; c < map.channels; c++) {
            size_t place = ((size_t)pixel * map.channels + c) * map.element;
            void *here = (void *)stand_in_swizzle((size_t)shared + place, map.swizzle);
            long channel = at[0] + (long)c;
            if (start && channel >= 0 && channel < (long)map.size[0])
                stand_in_load_element(map, here, start + channel * map.element);
            else
                stand_in_fill_element(map, here);
        }
        for (unsigned i = 0; i <= spatial; i++) {
            if (i == spatial) { image++; break; }
            x[i] += map.step[1 + i];
            if (x[i] <= (long)map.size[1 + i] - 1 + map.upper[i]) break;
            x[i] = map.lower[i];
        }
    }
}
