#ifndef ETCH_EXPLAIN_H
#define ETCH_EXPLAIN_H
#endif
