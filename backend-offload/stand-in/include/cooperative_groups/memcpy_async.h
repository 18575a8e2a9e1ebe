// Copies of a group.
#pragma once
#include <stand_in/barriers.h>
