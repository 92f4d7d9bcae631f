/* Defines the sizes on which the layout of shared memory is based. */
#ifndef CYPRODUCER_SIZES_H
#define CYPRODUCER_SIZES_H

#define CYP_CACHE_LINE 64
#define CYP_PAGE_BYTES 4096u

#endif
