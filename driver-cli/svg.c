/* Line plots as SVG: axes with round tick values, the points, their moving average, a title. */
#include "driver-cli/run_internal.h"

#include <math.h>

#define WIDTH       760
#define HEIGHT      420
#define LEFT        64
#define RIGHT       20
#define TOP         44
#define BOTTOM      52
#define TICKS_ABOUT 6

struct scale {
    double min, max, step; /* min and max are multiples of step */
    double origin, length; /* in pixels; length may be negative (the y axis goes up) */
};

static double pixel(const struct scale *scale, double value)
{
    return scale->origin + scale->length * (value - scale->min) / (scale->max - scale->min);
}

/* A step of 1, 2 or 5 times a power of ten that cuts the range into about TICKS_ABOUT parts. */
static double round_step(double range)
{
    double power = pow(10.0, floor(log10(range / TICKS_ABOUT)));
    double part = range / TICKS_ABOUT / power;

    return power * (part <= 1.0 ? 1.0 : part <= 2.0 ? 2.0 : part <= 5.0 ? 5.0 : 10.0);
}

static struct scale make_scale(const double *values, int64_t count, double origin, double length)
{
    struct scale scale = {.min = 0.0, .max = 1.0, .origin = origin, .length = length};

    if (count > 0)
        scale.min = scale.max = values[0];
    for (int64_t i = 0; i < count; i++) {
        scale.min = fmin(scale.min, values[i]);
        scale.max = fmax(scale.max, values[i]);
    }
    if (scale.max - scale.min < 1e-9 * fmax(1.0, fabs(scale.max))) { /* one value: room around it */
        scale.min -= 0.5;
        scale.max += 0.5;
    }
    scale.step = round_step(scale.max - scale.min);
    scale.min = floor(scale.min / scale.step) * scale.step;
    scale.max = ceil(scale.max / scale.step) * scale.step;
    return scale;
}

static void append_escaped(struct rk_str *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            rk_str_append(out, "&lt;");
            break;
        case '>':
            rk_str_append(out, "&gt;");
            break;
        case '&':
            rk_str_append(out, "&amp;");
            break;
        default:
            if ((unsigned char)*text >= 0x20) /* XML 1.0 has no control characters */
                rk_str_append_bytes(out, text, 1);
        }
    }
}

static void text_at(struct rk_str *out, double x, double y, const char *attributes, const char *text)
{
    rk_str_appendf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    append_escaped(out, text);
    rk_str_append(out, "</text>\n");
}

static void line(struct rk_str *out, double x1, double y1, double x2, double y2, const char *color)
{
    rk_str_appendf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2,
                   y2, color);
}

static void draw_ticks(struct rk_str *out, const struct scale *x, const struct scale *y)
{
    struct rk_str label = {0};
    int64_t num_x = llround((x->max - x->min) / x->step), num_y = llround((y->max - y->min) / y->step);

    for (int64_t i = 0; i <= num_x; i++) {
        double value = x->min + (double)i * x->step;

        rk_str_clear(&label);
        rk_str_appendf(&label, "%.6g", value);
        line(out, pixel(x, value), HEIGHT - BOTTOM, pixel(x, value), HEIGHT - BOTTOM + 5, "#444");
        text_at(out, pixel(x, value), HEIGHT - BOTTOM + 19, "text-anchor=\"middle\"", rk_str_text(&label));
    }
    for (int64_t i = 0; i <= num_y; i++) {
        double value = y->min + (double)i * y->step;

        rk_str_clear(&label);
        rk_str_appendf(&label, "%.6g", fabs(value) < y->step * 1e-6 ? 0.0 : value);
        line(out, LEFT, pixel(y, value), WIDTH - RIGHT, pixel(y, value), "#ddd");
        text_at(out, LEFT - 8, pixel(y, value) + 4, "text-anchor=\"end\"", rk_str_text(&label));
    }
    rk_str_fini(&label);
}

/* The mean of the last `window` points at each point, fewer at the beginning. */
static void draw_curve(struct rk_str *out, const struct rk_plot *plot, const struct scale *x,
                       const struct scale *y, int64_t window, const char *style)
{
    double sum = 0.0;

    rk_str_append(out, "<polyline fill=\"none\" points=\"");
    for (int64_t i = 0; i < plot->count; i++) {
        int64_t points = i + 1 < window ? i + 1 : window;

        sum += plot->y[i] - (i >= window ? plot->y[i - window] : 0.0);
        rk_str_appendf(out, "%s%.1f,%.1f", i > 0 ? " " : "", pixel(x, plot->x[i]),
                       pixel(y, sum / (double)points));
    }
    rk_str_appendf(out, "\" %s/>\n", style);
}

void rk_plot_svg(struct rk_str *out, const struct rk_plot *plot)
{
    struct scale x = make_scale(plot->x, plot->count, LEFT, WIDTH - LEFT - RIGHT);
    struct scale y = make_scale(plot->y, plot->count, HEIGHT - BOTTOM, -(HEIGHT - TOP - BOTTOM));
    bool has_average = plot->average_window > 1 && plot->count > 1;

    rk_str_appendf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
        "fill=\"#fff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_ticks(out, &x, &y);
    line(out, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "#444");
    line(out, LEFT, TOP, LEFT, HEIGHT - BOTTOM, "#444");
    text_at(out, WIDTH / 2.0, 26, "text-anchor=\"middle\" font-size=\"16\"", plot->title);
    text_at(out, WIDTH / 2.0, HEIGHT - 12, "text-anchor=\"middle\"", plot->x_label);
    rk_str_appendf(out, "<g transform=\"translate(16 %.1f) rotate(-90)\">", HEIGHT / 2.0);
    text_at(out, 0, 0, "text-anchor=\"middle\"", plot->y_label);
    rk_str_append(out, "</g>\n");
    draw_curve(out, plot, &x, &y, 1,
               has_average ? "stroke=\"#9ecae1\"" : "stroke=\"#08519c\" stroke-width=\"2\"");
    if (has_average)
        draw_curve(out, plot, &x, &y, plot->average_window, "stroke=\"#08519c\" stroke-width=\"2\"");
    rk_str_append(out, "</svg>\n");
}
