// Groups of one block, thread or cluster.
#pragma once
#include <stand_in/barriers.h>
